// A plan with what follows from it: who uses what, the tree of modules, sums over it.

const PHASES = {
  forward: { letter: "F", side: "forward" },
  "backward-input": { letter: "B", side: "backward" },
  "backward-weight": { letter: "W", side: "backward" },
  update: { letter: "U", side: "backward" },
};
const MOST_OPS_TOGETHER = 60; // of one module; more are shown in groups
const MOST_OPS_BESIDE = 20; // modules, which they would hide
const MOST_OF_A_KIND = 12; // beside modules: of inputs, of either half's ops
const FEWEST_IN_A_GROUP = 5;
const MOST_TOGETHER = 120; // of anything
const HANDED = { "received-forward": "forward", "received-backward": "backward", shared: "state" };
const SENT = ["sent-forward", "sent-backward"];
const BITS = /(\d+)/; // the first number of a dtype's name: bf16, f8e4m3

function readRef(text) {
  const match = /^([^]+)#(\d+)$/.exec(text);
  return match ? [match[1], Number(match[2])] : [text, 0];
}

const outputName = (output) => `${output.kind}:${output.name}`;
const edgeKey = (key, index, placement) => `${index} ${placement} ${key}`;
const readAxes = (mesh) => mesh.split(",").map((axis) => {
  const [name, size] = axis.split("=");
  return { name, size: Number(size) };
});

function readType(text) {
  const match = /^(\w+)\[([^\]]*)\]$/.exec(text ?? "");
  if (!match) return null;
  const dims = match[2] ? match[2].split(",").map(Number) : [];
  return { dims, itemBytes: Number(BITS.exec(match[1])[1]) / 8 };
}

// The bytes of the largest shard; ranks with fewer have a smaller last chunk.
function shardBytes(typeText, placement, axes) {
  const type = readType(typeText);
  if (!type || placement === null) return 0;
  const dims = [...type.dims];
  shardings(placement).forEach((text, i) => {
    if (text[0] !== "S") return;
    const dim = Number(/\d+/.exec(text)[0]);
    dims[dim] = Math.ceil(dims[dim] / (axes[i]?.size ?? 1));
  });
  return dims.reduce((total, size) => total * size, 1) * type.itemBytes;
}

class Model {
  constructor(data) {
    this.plan = data.plan;
    this.asked = new Map(Object.entries(data.asked));
    this.texts = data.formulas.texts;
    this.callTexts = new Map(Object.entries(data.formulas.calls));
    this.stepTexts = new Map(Object.entries(data.formulas.steps));
    this.step = data.step;
    this.marks = new Map(); // what a comparison says of a node, by key
    this.stageAxes = this.plan.stages.map((stage) => readAxes(stage.mesh));
    this.keys = this.plan.order;
    this.nodes = new Map(Object.entries(this.plan.nodes));
    this.position = new Map(this.keys.map((key, i) => [key, i]));
    this.connect();
    this.root = new TreeBuilder(this).build();
    this.wholeOf = new Map(Object.entries(this.plan.expanded)
      .flatMap(([whole, { nodes }]) => nodes.map((key) => [key, whole])));
  }

  axesOf(node) {
    return this.stageAxes[node.stage].map((axis) => axis.name);
  }

  // A placement on the mesh of the stage that a node is on.
  chips(placement, key) {
    return chips(placement, this.axesOf(this.nodes.get(key) ?? { stage: 0 }));
  }

  // A placement that a boxing leads to; what is sent is placed on the other stage's mesh.
  chipsAfter(boxing, placement = boxing.to) {
    return this.chips(placement, boxing.receiver ?? boxing.producer);
  }

  // The mesh of all stages, or that of each where they differ.
  mesh() {
    const own = this.plan.stages.map((stage) => stage.mesh);
    return new Set(own).size === 1 ? this.plan.mesh : own.join(" \u2192 ");
  }

  // The formula of a call's seconds and what its symbols stand for; null where unknown.
  formulaOf(key) {
    return this.texts[this.callTexts.get(key)] ?? null;
  }

  // The same of each of a boxing's collectives.
  formulasOfSteps({ key }) {
    return (this.stepTexts.get(key) ?? []).map((number) => this.texts[number] ?? null);
  }

  name(key) {
    const node = this.nodes.get(key);
    if (!node) return key;
    if (node.role) return node.role.name;
    return node.op.replace(/^aten\./, "").replace(/\.default$/, "");
  }

  side(key) {
    const node = this.nodes.get(key);
    return PHASES[node.phase]?.side ?? "forward";
  }

  heldBytes(key) {
    const node = this.nodes.get(key);
    const axes = this.stageAxes[node.stage];
    return sum(node.types.map((type, i) => shardBytes(type, node.signature.results[i], axes)));
  }

  // ---- who uses what

  connect() {
    this.boxingAt = new Map();
    this.boxingsOf = new Map(); // by the node that they are counted with
    this.usersOf = new Map();
    this.usesBy = new Map();
    for (const boxing of this.plan.boxings) {
      this.boxingAt.set(edgeKey(boxing.producer, boxing.index, boxing.to), boxing);
      this.count(boxing, boxing.consumers.find((key) => this.nodes.has(key)) ?? boxing.producer);
    }
    for (const key of this.keys) {
      const node = this.nodes.get(key);
      this.usesBy.set(key, node.operands.map((reference, i) =>
        this.addUse(key, reference, node.signature.operands[i])));
    }
    const handed = this.handOver();
    for (const output of this.plan.outputs) {
      if (output.value === null) continue;
      const use = this.addUse(outputName(output), output.value, output.placement);
      const isDrawn = SENT.includes(output.kind) && handed.has(output.value) && !use.boxing;
      if (isDrawn) this.usersOf.get(use.key).pop();
    }
  }

  count(boxing, key) {
    if (!this.boxingsOf.has(key)) this.boxingsOf.set(key, []);
    this.boxingsOf.get(key).push(boxing);
  }

  // What a stage is handed by another is drawn from where it was made, as if boxed.
  handOver() {
    const handed = new Set();
    const homes = new Map(this.keys.filter((key) => this.nodes.get(key).role?.kind === "parameter")
      .map((key) => [this.nodes.get(key).role.name, key]));
    for (const key of this.keys) {
      const { role, stage } = this.nodes.get(key);
      const way = role && HANDED[role.kind];
      const transfer = way && this.plan.transfers.find((one) =>
        one.kind === way && one.name === role.name && one.receiver === stage);
      const source = way === "state" ? homes.get(role.name) : role?.name;
      if (!transfer || !this.nodes.has(readRef(source)[0])) continue;
      const boxing = this.sending(transfer, readRef(source), key);
      this.count(boxing, key);
      this.usesBy.get(key).push(this.addUse(key, source, boxing.to, boxing));
      handed.add(source);
    }
    return handed;
  }

  sending({ kind, sender, receiver, from, to, bytes, seconds }, [producer, index], key) {
    const times = kind === "state" ? 1 : this.plan.microbatches;
    const step = { kind: "send", axis: `stage ${sender} to ${receiver}`, to, payload: bytes,
      bytes: times * bytes, seconds: times * seconds };
    return { key, producer, index, from, to, lowering: [step], consumers: [key], receiver: key,
      bytes: step.bytes, seconds: step.seconds, why: `stage ${receiver} uses it` };
  }

  addUse(consumer, reference, wanted, sent = null) {
    const [key, index] = readRef(reference);
    const boxing = sent ?? this.boxingAt.get(edgeKey(key, index, wanted)) ?? null;
    const use = { consumer, key, index, wanted, boxing };
    if (!this.usersOf.has(key)) this.usersOf.set(key, []);
    this.usersOf.get(key).push(use);
    return use;
  }

  users(key) {
    return this.usersOf.get(key) ?? [];
  }

  boxings(key) {
    return this.boxingsOf.get(key) ?? [];
  }

  made(use) {
    return this.nodes.get(use.key).signature.results[use.index];
  }

  type(use) {
    return this.nodes.get(use.key).types[use.index];
  }

  // What is warm of a thing, and the share of the whole plan that it has.
  heat(item, what) {
    const figure = { time: "seconds", memory: "held", communication: "moveSeconds" }[what];
    if (!figure) return { value: 0, share: 0 };
    const value = item.figures[figure];
    return { value, share: value / (this.root.figures[figure] || 1) };
  }

  // The stages that a thing is on, in their order.
  stagesOf(item) {
    return item.below ? [...item.stages].sort((a, b) => a - b) : [this.nodes.get(item.key).stage];
  }

  // ---- where things are in the tree

  pathTo(item) {
    const path = [];
    for (let at = item; at; at = at.parent) path.unshift(at);
    return path;
  }
}

const isHeld = ({ role }) => role !== null && (role.kind === "parameter" || role.kind === "buffer");

// What a node is called beside others of its module.
function lastName(model, item) {
  const { role } = model.nodes.get(item.key);
  if (isHeld({ role }) || role?.kind === "shared") return role.name.split(".").pop();
  return role && HANDED[role.kind] ? role.name.slice(role.name.indexOf("/") + 1) : item.name;
}

const noFigures = () =>
  ({ ops: 0, seconds: 0, held: 0, moves: 0, moveBytes: 0, moveSeconds: 0, forward: 0, backward: 0 });

// The tree: a module has ``below``, its modules, ops and what enters; an op has a key.
class TreeBuilder {
  constructor(model) {
    this.model = model;
    this.modules = new Map();
  }

  build() {
    const root = this.module("", null, this.model.plan.model.class);
    this.modules.set("", root);
    const known = new Set(this.model.keys.map((key) => this.model.nodes.get(key).module));
    this.model.items = new Map();
    this.model.byId = new Map();
    for (const key of this.model.keys) {
      const parent = this.at(this.pathOf(key, known));
      const item = { id: `op ${key}`, key, parent, name: this.model.name(key) };
      item.figures = this.figuresOf(key);
      this.model.items.set(key, item);
      parent.below.push(item);
    }
    this.finish(root);
    return root;
  }

  pathOf(key, known) {
    const node = this.model.nodes.get(key);
    if (isHeld(node)) return node.role.name.split(".").slice(0, -1).join(".");
    if (node.role && HANDED[node.role.kind]) {
      const user = this.model.users(key).find((use) => this.model.nodes.has(use.consumer));
      return user ? this.pathOf(user.consumer, known) : "";
    }
    if (node.role) return "";
    const before = key.slice(0, key.indexOf("/"));
    return node.module || (known.has(before) ? before : "");
  }

  module(path, parent, name) {
    return { id: `module ${path}`, path, name, parent, below: [], figures: noFigures() };
  }

  at(path) {
    if (this.modules.has(path)) return this.modules.get(path);
    const cut = path.lastIndexOf(".");
    const parent = this.at(path.slice(0, Math.max(cut, 0)));
    const module = this.module(path, parent, path.slice(cut + 1));
    this.modules.set(path, module);
    parent.below.push(module);
    return module;
  }

  figuresOf(key) {
    const node = this.model.nodes.get(key);
    const moved = this.model.boxings(key);
    const figures = noFigures();
    figures.ops = node.role ? 0 : 1;
    figures.seconds = node.seconds;
    figures.held = this.model.heldBytes(key);
    figures.moves = moved.filter((boxing) => boxing.bytes).length;
    figures.moveBytes = sum(moved.map((boxing) => boxing.bytes));
    figures.moveSeconds = sum(moved.map((boxing) => boxing.seconds));
    figures[this.model.side(key)] = node.seconds;
    return figures;
  }

  finish(module) {
    this.group(module);
    this.model.byId.set(module.id, module);
    for (const item of module.below) {
      if (item.below) this.finish(item);
      this.model.byId.set(item.id, item);
      for (const name of Object.keys(module.figures)) module.figures[name] += item.figures[name];
    }
    const stages = new Set(module.below.flatMap((item) =>
      (item.below ? [...item.stages] : [this.model.nodes.get(item.key).stage])));
    module.stages = stages;
    module.sides = new Set(module.below.flatMap((item) =>
      (item.below ? [...item.sides] : [this.model.side(item.key)])));
  }

  // Many ops of one module are shown some at a time, so that no drawing is ever large.
  group(module) {
    const ops = module.below.filter((item) => !item.below);
    const rest = module.below.filter((item) => item.below);
    const isMixed = rest.length > 0;
    if (!module.isGroup && (isMixed || ops.length > MOST_OPS_TOGETHER)) {
      const isMany = ops.length > MOST_OPS_BESIDE;
      const most = isMany ? FEWEST_IN_A_GROUP - 1 : MOST_OF_A_KIND;
      const parts = [...this.parted(ops)].flatMap(([what, own]) =>
        (own.length <= most ? own : this.groupsOf(module, what, own)));
      module.below = [...rest, ...parts];
    }
    while (module.below.length > MOST_TOGETHER) this.groupGroups(module);
  }

  groupsOf(module, what, own) {
    const groups = [];
    for (let first = 0; first < own.length; first += MOST_OPS_TOGETHER) {
      const part = own.slice(first, first + MOST_OPS_TOGETHER);
      const last = first + part.length;
      const name = own.length > part.length ? `${what} ${first + 1}\u2013${last}` : what;
      groups.push(this.groupOf(module, `${module.path} ${name}`, name, part));
    }
    return groups;
  }

  groupOf(module, path, name, part) {
    const group = this.module(path, module, name);
    group.isGroup = true;
    group.below = part;
    for (const item of part) item.parent = group;
    return group;
  }

  parted(ops) {
    const kinds = new Map();
    for (const item of ops) {
      const node = this.model.nodes.get(item.key);
      const what = node.role ? "inputs" : `${this.model.side(item.key)} ops`;
      if (!kinds.has(what)) kinds.set(what, []);
      kinds.get(what).push(item);
    }
    return kinds;
  }

  groupGroups(module) {
    const all = module.below;
    module.below = [];
    for (let first = 0; first < all.length; first += MOST_OPS_TOGETHER) {
      const part = all.slice(first, first + MOST_OPS_TOGETHER);
      const name = `${part[0].name} to ${part[part.length - 1].name}`;
      module.below.push(this.groupOf(module, `${module.path} [${first}] ${name}`, name, part));
    }
  }
}
