// What differs between two plans, node by node. Meshes may have other axes: what counts
// is what each axis, by name and size, does to a tensor; one that only repeats it is
// left out.

function spelled(placement, axes) {
  return shardings(placement).map((text, i) => [text, axes[i]])
    .filter(([text]) => text !== "B")
    .map(([text, axis]) => `${axis?.name}=${axis?.size} ${text}`).join(", ");
}

function spelledSignature(model, node) {
  const axes = model.stageAxes[node.stage];
  const side = (placements) => placements.map((placement) => spelled(placement, axes)).join("; ");
  return `${side(node.signature.operands)} -> ${side(node.signature.results)}`;
}

// What a node costs: itself, and the boxings that are made for it.
function costOf(model, key) {
  const item = model.items.get(key);
  return item.figures.seconds + item.figures.moveSeconds;
}

const PLACED = "\u0394 placed";
const STAGED = "\u0394 stage";
const ONLY = "\u0394 only here";

class Comparison {
  constructor(a, b) {
    this.models = [a, b];
    this.changed = [];
    this.only = [[], []];
    for (const key of a.keys) {
      if (!b.nodes.has(key)) this.note(0, key);
      else this.compare(key);
    }
    for (const key of b.keys) if (!a.nodes.has(key)) this.note(1, key);
    this.changed.sort((one, other) => Math.abs(other.cost) - Math.abs(one.cost));
    this.models.forEach((model) => this.countBelow(model, model.root));
  }

  note(side, key) {
    this.only[side].push(key);
    this.models[side].marks.set(key, ONLY);
  }

  compare(key) {
    const [a, b] = this.models;
    const [one, other] = [a.nodes.get(key), b.nodes.get(key)];
    const isPlaced = spelledSignature(a, one) !== spelledSignature(b, other);
    if (!isPlaced && one.stage === other.stage) return;
    this.models.forEach((model) => model.marks.set(key, isPlaced ? PLACED : STAGED));
    this.changed.push({ key, cost: costOf(b, key) - costOf(a, key) });
  }

  countBelow(model, module) {
    module.changes = sum(module.below.map((item) =>
      (item.below ? this.countBelow(model, item) : Number(model.marks.has(item.key)))));
    return module.changes;
  }

  // Parameters whose placements differ, in the order of the first plan.
  parameters() {
    const [a, b] = this.models;
    const text = (model, name) => {
      const held = model.plan.parameters[name];
      const axes = model.stageAxes[held.homes[0]] ?? model.stageAxes[0];
      return JSON.stringify(["storage", "use", "gradient", "optimizer"].map((kind) =>
        held.placements[kind] && spelled(held.placements[kind], axes)));
    };
    return Object.keys(a.plan.parameters).filter((name) =>
      b.plan.parameters[name] && text(a, name) !== text(b, name));
  }
}
