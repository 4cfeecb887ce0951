// Which edges stand at which level of the tree. A use of a tensor is drawn between two
// things of the innermost module that holds both its ends; a module further in has a
// port for what comes from outside or leaves it.

class Edges {
  constructor(model) {
    this.model = model;
    this.inside = new Map(); // module -> [{ use, from, to }], both directly in it
    this.entering = new Map(); // module -> [{ use, to }]
    this.leaving = new Map(); // module -> [{ use, from }]
    for (const uses of model.usersOf.values()) uses.forEach((use) => this.place(use));
    for (const boxing of model.plan.boxings) this.placeEntering(boxing);
  }

  note(map, module, entry) {
    if (!map.has(module)) map.set(module, []);
    map.get(module).push(entry);
  }

  place(use) {
    const from = this.model.pathTo(this.model.items.get(use.key));
    const consumer = this.model.items.get(use.consumer);
    const to = consumer ? this.model.pathTo(consumer) : null;
    if (!to) { // an output: it leaves where it is made
      const last = from.length - 1;
      this.note(this.leaving, from[last - 1], { use, from: from[last] });
      return;
    }
    let common = 0;
    while (from[common + 1] && from[common + 1] === to[common + 1]) common += 1;
    this.note(this.inside, from[common], { use, from: from[common + 1], to: to[common + 1] });
    for (let i = common + 1; i < from.length - 1; i += 1) {
      this.note(this.leaving, from[i], { use, from: from[i + 1] });
    }
    for (let i = common + 1; i < to.length - 1; i += 1) {
      this.note(this.entering, to[i], { use, to: to[i + 1] });
    }
  }

  // What the optimizer updates in one placement and the step receives in another.
  placeEntering(boxing) {
    if (boxing.consumers.length !== 1 || boxing.consumers[0] !== boxing.producer) return;
    const item = this.model.items.get(boxing.producer);
    const use = { consumer: boxing.producer, key: boxing.producer, index: 0, wanted: boxing.to, boxing };
    this.note(this.entering, item.parent, { use, to: item, isUpdate: true });
  }

  // ---- what one level shows, in one view of the phases

  level(module, isShown, view) {
    const found = new Level();
    const inside = (this.inside.get(module) ?? []).filter(({ from, to }) => isShown(from) || isShown(to));
    const spread = manyFed(inside.filter((one) => isShown(one.from)).map(({ use, to }) => [use.key, to.id]));
    for (const { use, from, to } of inside) {
      const isSaved = view === "backward" && this.isOf(use.consumer, view);
      if (isShown(from) && isShown(to) && this.fits(use, view)) {
        const start = spread.has(use.key) ? this.source(found, module, use, to, true) : from.id;
        found.join(start, to.id, use, this.isBack(use));
      } else if (isShown(to) && isSaved) {
        found.join(this.source(found, module, use, to, true), to.id, use, true);
      }
    }
    const entering = (this.entering.get(module) ?? []).filter(({ use, to, isUpdate }) =>
      isShown(to) && (isUpdate || this.entersIn(use, view)));
    const fed = manyFed(entering.map(({ use, to }) => [use.key, to.id]));
    for (const { use, to, isUpdate } of entering) {
      const start = isUpdate
        ? found.port(`update ${use.key}`, "from the optimizer", use.key, "update")
        : this.source(found, module, use, to, fed.has(use.key));
      found.join(start, to.id, use, this.isBack(use));
    }
    for (const { use, from } of this.leaving.get(module) ?? []) {
      if (!isShown(from) || !this.leavesIn(use, view)) continue;
      const isOutput = !this.model.items.has(use.consumer);
      const end = isOutput
        ? found.port(`out ${use.consumer}`, use.consumer.replace(":", " "), null, "output")
        : found.port(`out ${from.id}`, `to ${this.label(use.consumer, module)}`, use.consumer, "out");
      found.join(from.id, end, use, this.isBack(use));
    }
    found.mergePorts();
    return { edges: [...found.joined.values()], ports: [...found.ports.values()] };
  }

  // A tensor from outside; each who uses it has a port of its own where there are many.
  source(found, module, use, to, isOwn) {
    const isConstant = this.model.nodes.get(use.key).role?.kind === "constant";
    const id = `in ${use.key} ${isOwn || isConstant ? to.id : ""}`;
    return found.port(id, `from ${this.label(use.key, module)}`, use.key, "in");
  }

  isOf(key, view) {
    return view === "both" || !this.model.nodes.has(key) || this.model.side(key) === view;
  }

  isBack(use) {
    return this.model.nodes.has(use.consumer)
      ? this.model.side(use.consumer) === "backward"
      : this.model.side(use.key) === "backward";
  }

  // What the forward saved for the backward is drawn on demand: it would hide the rest.
  crosses(use) {
    if (!this.model.nodes.has(use.consumer)) return false;
    const node = this.model.nodes.get(use.key);
    return !node.role && this.model.side(use.key) !== this.model.side(use.consumer);
  }

  fits(use, view) {
    return !this.crosses(use) && this.isOf(use.consumer, view);
  }

  entersIn(use, view) {
    if (!this.isOf(use.consumer, view)) return false;
    return view === "backward" || !this.crosses(use);
  }

  leavesIn(use, view) {
    return this.isOf(use.key, view) && !this.crosses(use);
  }

  // A node as it is called from a module: by what they do not share of their paths.
  label(key, from) {
    const item = this.model.items.get(key);
    const parts = pathParts(item.parent);
    const near = pathParts(from);
    let common = 0;
    while (common < parts.length && parts[common] === near[common]) common += 1;
    while (common > 0 && /^\d+$/.test(parts[common])) common -= 1; // a number alone says nothing
    const rest = parts.slice(common).join(".");
    const name = lastName(this.model, item);
    return rest ? `${rest}: ${name}` : name;
  }
}

function pathParts(module) {
  let at = module;
  while (at.isGroup) at = at.parent;
  return at.path ? at.path.split(".") : [];
}

const MOST_PORTS_EACH = 1; // of one drawn thing, but those with a collective
const MOST_FED = 3; // by one drawn thing; lines to more would hide the rest

function manyFed(pairs) {
  const fed = new Map();
  for (const [key, to] of pairs) {
    if (!fed.has(key)) fed.set(key, new Set());
    fed.get(key).add(to);
  }
  return new Set([...fed].filter(([, to]) => to.size > MOST_FED).map(([key]) => key));
}

// The edges and ports of one level as they are found.
class Level {
  constructor() {
    this.joined = new Map();
    this.ports = new Map();
  }

  join(from, to, use, isBack) {
    const id = JSON.stringify([from, to, isBack]);
    if (!this.joined.has(id)) this.joined.set(id, { from, to, isBack, uses: [] });
    this.joined.get(id).uses.push(use);
  }

  // Of what comes into one thing alone, from many places, the first is named.
  mergePorts() {
    const fedBy = new Map();
    const inEdges = new Map();
    for (const edge of this.joined.values()) {
      if (this.ports.get(edge.from)?.kind !== "in") continue;
      if (!inEdges.has(edge.from)) inEdges.set(edge.from, []);
      inEdges.get(edge.from).push(edge);
    }
    for (const [id, edges] of inEdges) {
      if (edges.length > 1) continue;
      const way = JSON.stringify([edges[0].to, edges[0].isBack]);
      if (!fedBy.has(way)) fedBy.set(way, []);
      fedBy.get(way).push([id, edges[0]]);
    }
    for (const fed of fedBy.values()) {
      const plain = fed.filter(([, edge]) => !edge.uses.some((use) => use.boxing?.bytes));
      if (plain.length <= MOST_PORTS_EACH) continue;
      const [first, kept] = plain[0];
      for (const [id, edge] of plain.slice(1)) {
        kept.uses.push(...edge.uses);
        this.ports.get(first).targets.add(this.ports.get(id).target);
        this.ports.delete(id);
        for (const [name, one] of this.joined) if (one === edge) this.joined.delete(name);
      }
    }
  }

  port(id, text, target, kind) {
    if (!this.ports.has(id)) this.ports.set(id, { id, text, target, kind, targets: new Set() });
    this.ports.get(id).targets.add(target);
    return id;
  }
}
