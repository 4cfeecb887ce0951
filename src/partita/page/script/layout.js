// Where things stand. Each unfolded module is laid out by itself, by dagre, as a box
// for the level above; a level is laid out again only when something in it unfolds.

const OP_WIDTH = 196;
const PAD = 14;
const HEADER = 26;
const MOST_RANKED_WELL = 70; // boxes of a level, above which a quicker ranking is used
const MOST_PORTS = 60;
const CHIP_ROW = 18;
const CHARACTER = 6.1; // the width of one, in the labels' font

class Layout {
  constructor(model) {
    this.model = model;
    this.edges = new Edges(model);
    this.open = new Set([model.root]);
    this.view = "both";
    this.known = new Map();
  }

  setView(view) {
    this.view = view;
    this.known.clear();
  }

  setOpen(module, isOpen) {
    if (isOpen) this.open.add(module);
    else this.open.delete(module);
    for (let at = module; at; at = at.parent) this.known.delete(at);
  }

  isShown(item) {
    if (this.view === "both") return true;
    if (item.below) return item.sides.has(this.view);
    return this.model.side(item.key) === this.view;
  }

  // ---- one level

  of(module) {
    if (!this.known.has(module)) this.known.set(module, this.arrange(module));
    return this.known.get(module);
  }

  arrange(module) {
    const isShown = (item) => this.isShown(item);
    const items = module.below.filter(isShown);
    const { edges, ports } = this.edges.level(module, isShown, this.view);
    const shownPorts = new Set(ports.slice(0, MOST_PORTS).map((port) => port.id));
    const graph = new dagre.graphlib.Graph({ multigraph: true });
    graph.setGraph({
      rankdir: "TB", nodesep: 22, edgesep: 14, ranksep: 30,
      ranker: items.length > MOST_RANKED_WELL ? "longest-path" : "network-simplex",
    });
    const inner = new Map();
    for (const item of items) {
      const isOpen = item.below && this.open.has(item);
      if (isOpen) inner.set(item, this.of(item));
      graph.setNode(item.id, { ...this.size(item, inner.get(item)) });
    }
    for (const port of ports) {
      if (!shownPorts.has(port.id)) continue;
      const more = port.targets.size > 1 ? ` +${port.targets.size - 1}` : "";
      port.label = shortened(port.text, 32) + more;
      graph.setNode(port.id, { width: port.label.length * CHARACTER + 22, height: 20 });
    }
    const drawn = [];
    edges.forEach((edge, i) => {
      if (!graph.hasNode(edge.from) || !graph.hasNode(edge.to)) return;
      const target = items.find((item) => item.id === edge.to);
      this.label(edge, !inner.has(target));
      // A backward goes up beside its forward, so that a module is one block.
      const isReversed = this.view === "both" && edge.isBack;
      const ends = isReversed ? [edge.to, edge.from] : [edge.from, edge.to];
      const size = edge.lines.length
        ? { width: Math.max(...edge.lines.map((line) => line.length)) * CHARACTER + 14,
          height: edge.lines.length * 14 + 6, labelpos: "c" } : {};
      graph.setEdge(ends[0], ends[1], { ...size, weight: this.weight(edge) }, String(i));
      drawn.push({ edge, ends, name: String(i), isReversed });
    });
    dagre.layout(graph);
    return this.collect(module, items, inner, ports, drawn, graph);
  }

  collect(module, items, inner, ports, drawn, graph) {
    const { width, height } = graph.graph();
    const top = PAD + (module === this.model.root ? 0 : HEADER);
    // dagre's width is that of nodes and labels; lines may run beside them.
    const xs = graph.edges().flatMap((edge) => graph.edge(edge).points.map(({ x }) => x));
    const left = PAD - Math.min(0, ...xs);
    const place = ({ x, y, width: w, height: h }) => ({ x: x - w / 2 + left, y: y - h / 2 + top, w, h });
    return {
      width: Math.max(Math.max(width || 0, ...xs) + left + PAD, 120),
      height: (height || 0) + top + PAD,
      boxes: items.map((item) => ({ item, inner: inner.get(item), ...place(graph.node(item.id)) })),
      ports: ports.filter((port) => graph.hasNode(port.id))
        .map((port) => ({ port, ...place(graph.node(port.id)) })),
      edges: drawn.map(({ edge, ends, name, isReversed }) => {
        const found = graph.edge(ends[0], ends[1], name);
        const points = found.points.map(({ x, y }) => ({ x: x + left, y: y + top }));
        if (isReversed) points.reverse();
        const label = edge.lines.length
          ? { x: found.x + left, y: found.y + top, w: found.width, h: found.height } : null;
        return { edge, points, label };
      }),
    };
  }

  // The forward runs straight, if anything does.
  weight(edge) {
    if (!edge.from.startsWith("in ") && !edge.to.startsWith("out ")) return edge.isBack ? 2 : 6;
    return 1;
  }

  size(item, inner) {
    if (inner) return { width: inner.width, height: inner.height };
    if (item.below) return { width: OP_WIDTH, height: item.figures.moves ? 66 : 50 };
    const node = this.model.nodes.get(item.key);
    const axes = shardings(node.signature.results[0] ?? null).length;
    const rows = Math.max(1, Math.ceil(axes / 3));
    return { width: OP_WIDTH, height: 58 + (rows - 1) * CHIP_ROW + (isQuiet(node) ? 0 : 17) };
  }

  // ---- what stands on an edge: the collectives on their way to what is drawn there

  label(edge, isLast) {
    const boxings = [...new Set(edge.uses.map((use) => use.boxing).filter(Boolean))];
    edge.boxings = boxings;
    edge.moves = boxings.filter((boxing) => boxing.bytes);
    edge.lines = [];
    if (!isLast) return;
    const shown = edge.moves.length ? edge.moves : boxings;
    if (shown.length === 1) {
      const [boxing] = shown;
      edge.lines.push(steps(boxing));
      edge.lines.push(boxing.bytes
        ? `${shortBytes(boxing.bytes)} \u00b7 ${seconds(boxing.seconds)}` : seconds(boxing.seconds));
    } else if (shown.length) {
      const kinds = new Set(shown.flatMap((boxing) => boxing.lowering.map((step) => step.kind)));
      edge.lines.push(`${shown.length} \u00d7 ${[...kinds].slice(0, 2).join(", ")}`);
      edge.lines.push(`${shortBytes(sum(shown.map((b) => b.bytes)))} \u00b7 `
        + seconds(sum(shown.map((b) => b.seconds))));
    }
  }

  // ---- all levels together

  scene() {
    const scene = { boxes: [], ports: [], edges: [], boxAt: new Map() };
    const add = (module, layout, left, top) => {
      for (const box of layout.boxes) {
        const placed = { ...box, x: box.x + left, y: box.y + top };
        scene.boxes.push(placed);
        scene.boxAt.set(box.item, placed);
        if (box.inner) add(box.item, box.inner, placed.x, placed.y);
      }
      for (const port of layout.ports) {
        scene.ports.push({ ...port, module, x: port.x + left, y: port.y + top });
      }
      for (const { edge, points, label } of layout.edges) {
        scene.edges.push({
          edge,
          points: points.map(({ x, y }) => ({ x: x + left, y: y + top })),
          label: label && { ...label, x: label.x + left, y: label.y + top },
        });
      }
    };
    const whole = this.of(this.model.root);
    add(this.model.root, whole, 0, 0);
    return { ...scene, width: whole.width, height: whole.height };
  }
}

const steps = (boxing) => boxing.lowering.map((step) => `${step.kind} ${step.axis}`).join(", ");

// What takes no time and enters no account: a view of something else.
const isQuiet = (node) => !node.role && node.seconds === 0;
