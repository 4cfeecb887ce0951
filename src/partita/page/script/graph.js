// The drawing of the graph: only what stands in the window is in the document.

const MARGIN = 200; // around the window, drawn too, so that moving it shows no gap
const FAR = 0.5; // below this scale only names are legible, so only they are drawn
const STEP = 1.25; // of one press of a zoom key
const OPENED_AT_FIRST = 40; // boxes: what a first look takes in

class GraphView {
  constructor(svg, model, on) {
    this.svg = svg;
    this.model = model;
    this.on = on; // { select(item), boxing(boxings), jump(key), toggled(item, isOpen) }
    this.layout = new Layout(model);
    this.heat = "none";
    this.selected = null;
    this.at = { x: 0, y: 0, scale: 1 };
    this.world = draw("g", { class: "world" });
    this.layers = ["open", "edges", "boxes", "labels"].map((name) => draw("g", { class: name }));
    this.world.append(...this.layers);
    svg.replaceChildren(this.world);
    this.drawn = new Map();
    this.openAtFirst();
    this.listen();
    this.update();
    this.fit();
  }

  // ---- what is unfolded

  openAtFirst() {
    let shown = this.model.root.below.length;
    const waiting = [this.model.root];
    while (waiting.length) {
      const modules = waiting.shift().below.filter((item) => item.below && !item.isGroup);
      const whole = modules.filter((item) => item.below.some((one) => one.below && !one.isGroup));
      if (whole.length !== 1 || shown + whole[0].below.length > OPENED_AT_FIRST) continue;
      this.layout.setOpen(whole[0], true);
      shown += whole[0].below.length;
      waiting.push(whole[0]);
    }
  }

  toggle(item, isOpen = !this.layout.open.has(item)) {
    if (!item.below || item === this.model.root) return;
    const before = this.scene.boxAt.get(item);
    this.layout.setOpen(item, isOpen);
    this.update();
    const after = this.scene.boxAt.get(item);
    if (before && after) {
      this.at.x += (before.x - after.x) * this.at.scale;
      this.at.y += (before.y - after.y) * this.at.scale;
      this.show(after);
    }
    this.on.toggled(item, isOpen);
  }

  // Move the window as little as shows a box; where it is larger, show its start.
  show(box) {
    const { width, height } = this.size;
    const { scale } = this.at;
    const shift = (start, length, room) => {
      const end = start + length;
      if (length > room - 40 || start < 20) return 20 - start;
      return Math.min(0, room - 20 - end);
    };
    const isWide = box.w * scale > width - 40;
    const [x, y] = [box.x * scale + this.at.x, box.y * scale + this.at.y];
    this.at.x += isWide ? (width - box.w * scale) / 2 - x : shift(x, box.w * scale, width);
    this.at.y += shift(y, box.h * scale, height);
    this.refresh();
  }

  unfold(item) {
    if (!item?.below) return;
    const open = (module) => {
      this.layout.setOpen(module, true);
      module.below.filter((one) => one.below).forEach(open);
    };
    open(item);
    this.update();
    this.show(this.scene.boxAt.get(item));
  }

  // As at first.
  reset() {
    [...this.layout.open].forEach((module) => {
      if (module !== this.model.root) this.layout.setOpen(module, false);
    });
    this.openAtFirst();
    this.update();
    this.fit();
  }

  reveal(item) {
    for (const module of this.model.pathTo(item).slice(1, -1)) this.layout.setOpen(module, true);
    if (!this.layout.isShown(item)) this.setView("both");
    this.update();
    this.center(item);
  }

  setView(view) {
    this.layout.setView(view);
    this.update();
    this.on.viewed?.(view);
  }

  setHeat(heat) {
    this.heat = heat;
    this.redraw();
  }

  update() {
    this.scene = this.layout.scene();
    this.redraw();
  }

  // The most that a folded thing has of what heat shows.
  warmest() {
    this.most ??= Math.max(...this.scene.boxes.filter((box) => !box.inner)
      .map((box) => this.model.heat(box.item, this.heat).value));
    return this.most;
  }

  redraw() {
    this.most = undefined;
    this.drawn.forEach((elements) => elements.forEach((element) => element.remove()));
    this.drawn.clear();
    this.refresh();
  }

  // ---- the window

  get size() {
    const { width, height } = this.svg.getBoundingClientRect();
    return { width: width || 800, height: height || 500 };
  }

  fit() {
    const { width, height } = this.size;
    const scale = Math.min(1, (width - 24) / this.scene.width, (height - 24) / this.scene.height);
    this.at.scale = Math.max(scale, Math.min(0.62, (width - 24) / this.scene.width));
    this.at.x = (width - this.scene.width * this.at.scale) / 2;
    this.at.y = Math.max(12, (height - this.scene.height * this.at.scale) / 2);
    this.refresh();
  }

  center(item) {
    const box = this.scene.boxAt.get(item);
    if (!box) return;
    const { width, height } = this.size;
    this.at.scale = Math.max(this.at.scale, 0.85);
    this.at.x = width / 2 - (box.x + box.w / 2) * this.at.scale;
    this.at.y = box.h * this.at.scale > height - 40
      ? 20 - box.y * this.at.scale : height / 2 - (box.y + box.h / 2) * this.at.scale;
    this.refresh();
  }

  zoom(factor, x = this.size.width / 2, y = this.size.height / 2) {
    const scale = Math.min(3, Math.max(0.03, this.at.scale * factor));
    const real = scale / this.at.scale;
    this.at.x = x - (x - this.at.x) * real;
    this.at.y = y - (y - this.at.y) * real;
    this.at.scale = scale;
    this.later();
  }

  pan(x, y) {
    this.at.x += x;
    this.at.y += y;
    this.later();
  }

  later() {
    if (this.isWaiting) return;
    this.isWaiting = true;
    requestAnimationFrame(() => {
      this.isWaiting = false;
      this.refresh();
    });
  }

  // ---- drawing what stands in the window

  refresh() {
    const { x, y, scale } = this.at;
    const { width, height } = this.size;
    this.world.setAttribute("transform", `translate(${x} ${y}) scale(${scale})`);
    this.svg.classList.toggle("far", scale < FAR);
    this.svg.style.setProperty("--far", `${Math.min(30, 11 / scale)}px`);
    const window_ = {
      left: (-x - MARGIN) / scale, top: (-y - MARGIN) / scale,
      right: (width - x + MARGIN) / scale, bottom: (height - y + MARGIN) / scale,
    };
    const isIn = (left, top, w, h) => left < window_.right && left + w > window_.left
      && top < window_.bottom && top + h > window_.top;
    const wanted = new Set();
    const want = (thing, make) => {
      wanted.add(thing);
      if (!this.drawn.has(thing)) this.drawn.set(thing, make());
    };
    const painter = new Painter(this);
    for (const box of this.scene.boxes) {
      if (isIn(box.x, box.y, box.w, box.h)) want(box, () => painter.box(box));
    }
    for (const port of this.scene.ports) {
      if (isIn(port.x, port.y, port.w, port.h)) want(port, () => painter.port(port));
    }
    for (const edge of this.scene.edges) {
      const extent = extentOf(edge);
      if (isIn(...extent)) want(edge, () => painter.edge(edge));
    }
    for (const [thing, elements] of this.drawn) {
      if (wanted.has(thing)) continue;
      elements.forEach((element) => element.remove());
      this.drawn.delete(thing);
    }
    this.drawSaved(painter);
  }

  // What the forward saved for the backward, of what is selected.
  drawSaved(painter) {
    this.saved?.forEach((element) => element.remove());
    this.saved = [];
    const key = this.selected?.key;
    if (!key) return;
    const crossing = [...(this.model.usesBy.get(key) ?? []), ...this.model.users(key)]
      .filter((use) => this.layout.edges.crosses(use));
    for (const use of crossing) {
      const ends = [use.key, use.consumer].map((end) => this.boxOf(this.model.items.get(end)));
      if (ends[0] && ends[1] && ends[0] !== ends[1]) this.saved.push(painter.saved(...ends));
    }
  }

  // What stands for a thing: its own box, or the folded module that it is in.
  boxOf(item) {
    for (let at = item; at; at = at.parent) {
      const box = this.scene.boxAt.get(at);
      if (box) return box.inner ? null : box;
    }
    return null;
  }

  // ---- selection

  select(item, { isFocused = false } = {}) {
    this.selected = item;
    for (const [thing, elements] of this.drawn) {
      if (thing.item) elements[0].classList.toggle("selected", thing.item === item);
      else if (thing.edge) {
        const isOfIt = item && (thing.edge.from === item.id || thing.edge.to === item.id);
        elements.forEach((element) => element.classList.toggle("lit", Boolean(isOfIt)));
      }
    }
    this.refresh();
    const box = item && this.scene.boxAt.get(item);
    if (box && isFocused) this.drawn.get(box)?.[0].focus({ preventScroll: true });
  }

  // The box next to the selected one, that way; the nearest, sideways counting twice.
  neighbour(dx, dy) {
    const from = this.scene.boxAt.get(this.selected);
    if (!from) return this.scene.boxes[0]?.item;
    const center = (box) => [box.x + box.w / 2, box.y + (box.inner ? 10 : box.h / 2)];
    const [x, y] = center(from);
    let best = null;
    for (const box of this.scene.boxes) {
      const [bx, by] = center(box);
      const along = (bx - x) * dx + (by - y) * dy;
      const aside = Math.abs((bx - x) * dy) + Math.abs((by - y) * dx);
      if (box === from || along <= 1) continue;
      const far = along + 2 * aside;
      if (!best || far < best.far) best = { far, item: box.item };
    }
    return best?.item;
  }

  // ---- mouse, wheel, touch, keys

  listen() {
    const { svg } = this;
    let held = null;
    svg.addEventListener("pointerdown", (event) => {
      if (event.button === 0) held = { x: event.clientX, y: event.clientY, moved: false };
    });
    svg.addEventListener("pointermove", (event) => {
      if (!held || !(event.buttons & 1)) return;
      const [dx, dy] = [event.clientX - held.x, event.clientY - held.y];
      if (!held.moved && Math.hypot(dx, dy) < 4) return;
      if (!held.moved) svg.setPointerCapture(event.pointerId);
      held = { x: event.clientX, y: event.clientY, moved: true };
      this.pan(dx, dy);
    });
    svg.addEventListener("pointerup", () => setTimeout(() => { held = null; }));
    svg.addEventListener("click", (event) => {
      if (!held?.moved) this.click(event);
    });
    svg.addEventListener("dblclick", (event) => {
      const item = this.itemAt(event.target);
      if (item?.below && !event.target.closest(".toggle")) this.toggle(item);
    });
    svg.addEventListener("wheel", (event) => {
      event.preventDefault();
      const { left, top } = svg.getBoundingClientRect();
      const factor = Math.exp(-event.deltaY * (event.deltaMode ? 0.05 : 0.0016));
      this.zoom(factor, event.clientX - left, event.clientY - top);
    }, { passive: false });
    svg.addEventListener("keydown", (event) => this.key(event));
    new ResizeObserver(() => this.later()).observe(svg);
  }

  itemAt(target) {
    return target.closest("g.box")?.itemOfBox ?? null;
  }

  click(event) {
    const item = this.itemAt(event.target);
    const thing = event.target.closest("g.port, g.label");
    if (event.target.closest(".toggle")) {
      this.toggle(item);
      this.on.select(item);
    }
    else if (thing?.boxingsOfLabel) this.on.boxing(thing.boxingsOfLabel);
    else if (thing?.keyOfPort) this.on.jump(thing.keyOfPort);
    else if (item) this.on.select(item);
    else this.on.select(null);
  }

  key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const ways = { ArrowUp: [0, -1], ArrowDown: [0, 1], ArrowLeft: [-1, 0], ArrowRight: [1, 0] };
    const way = ways[event.key];
    const thing = event.target.closest("g.port, g.label");
    if (way && event.shiftKey) this.pan(-80 * way[0], -80 * way[1]);
    else if (way) {
      const item = this.neighbour(...way);
      if (item) this.go(item);
    } else if (event.key === "Enter" && thing) this.click(event);
    else if ((event.key === "Enter" || event.key === " ") && this.selected) {
      if (this.selected.below) this.toggle(this.selected);
      this.on.select(this.selected, { isFocused: true });
    } else if (event.key === "Backspace" && this.selected?.parent?.parent) {
      this.go(this.selected.parent);
    } else if (event.key === "+" || event.key === "=") this.zoom(STEP);
    else if (event.key === "-") this.zoom(1 / STEP);
    else if (event.key === "0") this.fit();
    else return;
    event.preventDefault();
  }

  // Move the selection by key, and the window as far as it needs to show it.
  go(item) {
    const box = this.scene.boxAt.get(item);
    this.show(box);
    this.on.select(item, { isFocused: true });
  }
}

function extentOf({ points, label }) {
  const xs = points.map((point) => point.x);
  const ys = points.map((point) => point.y);
  if (label) {
    xs.push(label.x - label.w / 2, label.x + label.w / 2);
    ys.push(label.y - label.h / 2, label.y + label.h / 2);
  }
  const [left, top] = [Math.min(...xs), Math.min(...ys)];
  return [left, top, Math.max(...xs) - left + 1, Math.max(...ys) - top + 1];
}
