// One box, port or edge of the graph as SVG. Heat and placements have colour and text.

const ARROW = 5;

class Painter {
  constructor(view) {
    this.view = view;
    this.model = view.model;
    [this.opened, this.edges, this.boxes, this.labels] = view.layers;
  }

  box(box) {
    const { item } = box;
    const parts = box.inner ? this.openParts(box) : item.below ? this.moduleParts(box) : this.opParts(box);
    if (!box.inner) parts.push(this.farName(item, box));
    const group = draw("g", {
      class: `box ${item.below ? "module" : "op"} ${box.inner ? "unfolded" : ""}`,
      transform: `translate(${box.x} ${box.y})`, tabindex: "-1", role: "button",
      "aria-label": this.spoken(item, Boolean(box.inner)),
    }, ...parts);
    if (item.below) group.setAttribute("aria-expanded", String(Boolean(box.inner)));
    group.itemOfBox = item;
    group.classList.toggle("selected", item === this.view.selected);
    (box.inner ? this.opened : this.boxes).append(group);
    return [group];
  }

  // What is legible from afar, in place of all else.
  farName(item, box) {
    const name = item.below ? nameOf(item) : lastName(this.model, item);
    return draw("text", { x: box.w / 2, y: box.h / 2, class: "farname", "text-anchor": "middle",
      "dominant-baseline": "central" }, shortened(name, 10));
  }

  spoken(item, isOpen) {
    const { figures } = item;
    if (item.below) {
      const moved = figures.moves ? `, ${plural(figures.moves, "collective edge")}` : "";
      return `module ${nameOf(item)}, ${plural(figures.ops, "op")}, ${seconds(figures.seconds)}`
        + `${moved}, ${isOpen ? "unfolded" : "folded"}`;
    }
    const node = this.model.nodes.get(item.key);
    return `${item.name}, ${node.types[0] ?? "no tensor"}, placed ${node.signature.results[0] ?? "nowhere"}, `
      + seconds(node.seconds);
  }

  frame(box, extra = {}) {
    const frame = draw("rect", { class: "frame", width: box.w, height: box.h, rx: 6, ...extra });
    const stages = this.model.stagesOf(box.item);
    if (this.view.heat === "stage" && stages.length === 1 && !box.inner) {
      frame.style.fill = `color-mix(in oklab, var(--${series(stages[0])}) 24%, var(--raised))`;
    }
    const { value } = this.model.heat(box.item, this.view.heat);
    if (value && !box.inner) {
      const warm = Math.sqrt(value / this.view.warmest());
      frame.style.fill = `color-mix(in oklab, var(--hot) ${Math.round(100 * warm)}%, var(--raised))`;
      frame.classList.toggle("hot", warm > 0.55);
    }
    return frame;
  }

  text(x, y, text, kind = "", most = 31) {
    return draw("text", { x, y, class: kind }, shortened(String(text), most));
  }

  end(x, y, text, kind) {
    return draw("text", { x, y, class: kind, "text-anchor": "end" }, text);
  }

  toggleButton(x, y, isOpen) {
    return draw("g", { class: "toggle fine", transform: `translate(${x} ${y})` },
      draw("rect", { width: 18, height: 18, rx: 4 }),
      draw("path", { d: isOpen ? "M5 9h8" : "M5 9h8M9 5v8" }));
  }

  openParts(box) {
    const { item } = box;
    const room = Math.max(8, Math.floor((box.w - 60) / 7));
    const name = shortened(nameOf(item), room);
    const facts = moduleFacts(item);
    const used = name.length * 7.4 + 44;
    return [this.frame(box), this.toggleButton(7, 5, true),
      draw("text", { x: 32, y: 18, class: "name opened" }, name),
      used + facts.length * 6 < box.w - 8
        ? this.end(box.w - 10, 18, facts, "fine quiet") : null];
  }

  moduleParts(box) {
    const { item } = box;
    const { figures } = item;
    const stages = this.model.plan.stages.length > 1
      ? `stage ${this.model.stagesOf(item).join(", ")}` : "";
    return [
      draw("rect", { class: "stack", x: 4, y: 4, width: box.w, height: box.h, rx: 6 }),
      this.frame(box), this.toggleButton(box.w - 25, 7, false),
      this.text(10, 20, nameOf(item), "name fine", 20), this.mark(item, box),
      this.text(10, 38, `${plural(figures.ops, "op")} \u00b7 ${seconds(figures.seconds)}`, "fine quiet"),
      stages ? this.end(box.w - 10, 38, stages, "fine quiet") : null,
      figures.moves ? this.text(10, 56,
        `\u21c4 ${figures.moves} \u00b7 ${shortBytes(figures.moveBytes)} \u00b7 ${seconds(figures.moveSeconds)}`,
        "fine moves") : null,
      this.share(item, box),
    ];
  }

  opParts(box) {
    const { item } = box;
    const node = this.model.nodes.get(item.key);
    const isStaged = this.model.plan.stages.length > 1;
    const letter = node.role ? "in" : PHASES[node.phase]?.letter ?? "?";
    const more = node.types.length > 1 ? ` +${node.types.length - 1}` : "";
    const parts = [
      this.frame(box, node.role ? { class: `frame held ${node.role.kind}` } : {}),
      this.text(10, 18, lastName(this.model, item), "name fine", 22),
      this.mark(item, box),
      this.end(box.w - 8, 17, letter, "fine quiet small"),
      this.text(10, 34, `${node.types[0] ?? "no tensor"}${more}`, "fine code", isStaged ? 21 : 28),
      isStaged ? this.end(box.w - 8, 34, `stage ${node.stage}`, "fine quiet small") : null,
      ...this.chips(node, 41),
    ];
    if (!isQuiet(node)) {
      const held = `${shortBytes(item.figures.held)} a rank`;
      const y = box.h - 7;
      parts.push(this.text(10, y, node.role ? held : seconds(node.seconds), "fine quiet"));
      if (!node.role) parts.push(this.end(box.w - 8, y, held, "fine quiet"));
    }
    parts.push(this.share(item, box));
    return parts;
  }

  // The share of the whole plan, where heat is shown.
  share(item, box) {
    const { share } = this.model.heat(item, this.view.heat);
    if (share < 0.0005) return null;
    const text = share < 0.0995 ? `${(100 * share).toFixed(1)}%` : `${Math.round(100 * share)}%`;
    return this.end(box.w - (item.below ? 32 : 26), 19, text, "share fine");
  }

  mark(item, box) {
    const mark = item.below ? item.changes : this.model.marks.get(item.key);
    if (!mark) return null;
    const text = item.below ? `\u0394 ${mark}` : mark;
    const x = box.w - (item.below ? 32 : 24);
    return draw("text", { x, y: 19, class: "mark", "text-anchor": "end" }, text);
  }

  chips(node, top) {
    const placement = node.signature.results[0] ?? null;
    const axes = this.model.axesOf(node);
    const parts = [];
    let x = 10;
    let y = top;
    shardings(placement).forEach((sharding, i) => {
      if (i && i % 3 === 0) {
        x = 10;
        y += CHIP_ROW;
      }
      const text = shortSharding(sharding);
      const axis = shortened(axes[i] ?? String(i), 5);
      const width = (axis.length + text.length + 1) * 5.9 + 9;
      parts.push(draw("g", { class: `fine chip ${KINDS[sharding[0]]}` },
        draw("rect", { x, y, width, height: 14, rx: 3 }),
        draw("text", { x: x + 4.5, y: y + 10.5 },
          draw("tspan", { class: "axis" }, axis), `\u00a0${text}`)));
      x += width + 4;
    });
    return parts;
  }

  // ---- edges

  edge({ edge, points, label }) {
    const kind = edge.moves?.length ? "moves" : edge.boxings?.length ? "local" : "plain";
    const { selected } = this.view;
    const isLit = selected && (edge.from === selected.id || edge.to === selected.id);
    const group = draw("g", {
      class: `edge ${kind} ${edge.isBack ? "back" : ""} ${isLit ? "lit" : ""}`,
    }, draw("path", { class: "line", d: curve(points) }), arrow(points));
    this.edges.append(group);
    return label ? [group, this.label(edge, label, kind)] : [group];
  }

  label(edge, { x, y, w, h }, kind) {
    const group = draw("g", {
      class: `label fine ${kind}`, transform: `translate(${x - w / 2} ${y - h / 2})`,
      tabindex: "-1", role: "button", "aria-label": `boxing: ${edge.lines.join(", ")}`,
    }, draw("title", {}, this.told(edge)), draw("rect", { width: w, height: h, rx: 4 }),
    ...edge.lines.map((line, i) => draw("text", { x: w / 2, y: 14 + 14 * i, "text-anchor": "middle" }, line)));
    group.boxingsOfLabel = edge.boxings;
    this.labels.append(group);
    return group;
  }

  // Where in the model a collective comes from, and why it is there.
  told(edge) {
    return edge.boxings.slice(0, 6).map((boxing) => {
      const sources = [boxing.producer, ...boxing.consumers]
        .map((key) => this.model.nodes.get(key)?.source).filter(Boolean);
      return [steps(boxing), ...new Set(sources), boxing.why].join("\n");
    }).join("\n\n");
  }

  saved(from, to) {
    const [x1, y1] = [from.x + from.w / 2, from.y + from.h / 2];
    const [x2, y2] = [to.x + to.w / 2, to.y + to.h / 2];
    const path = draw("path", { class: "saved", d: `M${x1} ${y1}C${(x1 + x2) / 2} ${y1} ${(x1 + x2) / 2} ${y2} ${x2} ${y2}` });
    this.edges.append(path);
    return path;
  }

  port({ port, x, y, w, h }) {
    const group = draw("g", {
      class: `port fine ${port.kind}`, transform: `translate(${x} ${y})`, tabindex: "-1",
      ...(port.target ? { role: "button", "aria-label": `go to ${port.text}` } : {}),
    }, draw("rect", { width: w, height: h, rx: h / 2 }),
    draw("text", { x: w / 2, y: 14, "text-anchor": "middle" }, port.label),
    draw("title", {}, port.text));
    group.keyOfPort = port.target;
    this.boxes.append(group);
    return [group];
  }
}

// The number of a layer alone says nothing: h.0 does.
function nameOf(item) {
  return /^\d+$/.test(item.name) && item.parent?.path
    ? `${item.parent.name}.${item.name}` : item.name;
}

function moduleFacts({ figures }) {
  const moved = figures.moves ? ` \u00b7 \u21c4 ${figures.moves} \u00b7 ${seconds(figures.moveSeconds)}` : "";
  return `${plural(figures.ops, "op")} \u00b7 ${seconds(figures.seconds)}${moved}`;
}

const spot = ({ x, y }) => `${x.toFixed(1)} ${y.toFixed(1)}`;

function curve(points) {
  const middle = (a, b) => ({ x: (a.x + b.x) / 2, y: (a.y + b.y) / 2 });
  const last = points[points.length - 1];
  let path = `M${spot(points[0])}`;
  for (let i = 1; i < points.length - 1; i += 1) {
    const end = i === points.length - 2 ? last : middle(points[i], points[i + 1]);
    path += `Q${spot(points[i])} ${spot(end)}`;
  }
  return points.length > 2 ? path : `${path}L${spot(last)}`;
}

function arrow(points) {
  const [before, end] = points.slice(-2);
  const angle = Math.atan2(end.y - before.y, end.x - before.x);
  const corner = (turn) => ({
    x: end.x - 2 * ARROW * Math.cos(angle + turn), y: end.y - 2 * ARROW * Math.sin(angle + turn),
  });
  return draw("path", { class: "head", d: `M${spot(end)}L${spot(corner(0.42))}L${spot(corner(-0.42))}Z` });
}
