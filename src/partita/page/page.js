"use strict";
// Draws the plan that the page holds. Names in a plan are a stranger's: they only ever
// become text nodes, never markup.

const plan = JSON.parse(document.getElementById("plan").textContent);
const axes = plan.mesh.split(",").map((axis) => axis.split("=")[0]);
const pins = new Map(Object.entries(plan.options.pins));
const MOST_FOUND = 100;

function el(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

// ---- figures and placements

function scaled(value, units, digits) {
  for (const [size, unit] of units) {
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(digits))} ${unit}`;
  }
  return `0 ${units[units.length - 1][1]}`;
}

const seconds = (s) => scaled(s, [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]], 3);
const bytes = (n) =>
  scaled(n, [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]], 4);

const KINDS = { S: "split", B: "broadcast", P: "partial" };

function chips(placement) {
  if (placement === null) return el("span", { className: "quiet" }, "no tensor");
  const words = placement.match(/S\([^)]*\)|P\([^)]*\)|B/g) || [];
  const parts = words.map((word, i) =>
    el("span", { className: `chip ${KINDS[word[0]]}` }, `${axes[i] || i} ${word}`));
  return el("span", { title: placement }, ...parts);
}

function table(head, rows, numbers = []) {
  const kind = (i) => (numbers.includes(i) ? "number" : "");
  const line = (tag, cells) =>
    el("tr", {}, ...cells.map((cell, i) => el(tag, { className: kind(i) }, cell)));
  return el("table", {},
    el("thead", {}, line("th", head)),
    el("tbody", {}, ...rows.map((cells) => line("td", cells))));
}

// ---- who uses what

function readRef(text) {
  const match = /^([^]+)#(\d+)$/.exec(text);
  return match ? [match[1], Number(match[2])] : [text, 0];
}

const outputName = (output) => `${output.kind}:${output.name}`;
const edgeKey = (key, index, placement) => JSON.stringify([key, index, placement]);
const boxingAt = new Map(
  plan.boxings.map((b) => [edgeKey(b.producer, b.index, b.to), b]));
const usersOf = new Map();

function addUse(consumer, reference, wanted) {
  const [key, index] = readRef(reference);
  const use = { consumer, key, index, wanted };
  if (!usersOf.has(key)) usersOf.set(key, []);
  usersOf.get(key).push(use);
  return use;
}

const usesBy = new Map();
for (const key of plan.order) {
  const node = plan.nodes[key];
  usesBy.set(key, node.operands.map((reference, i) =>
    addUse(key, reference, node.signature.operands[i])));
}
for (const output of plan.outputs) {
  if (output.value !== null) addUse(outputName(output), output.value, output.placement);
}

const boxingOf = (use) => boxingAt.get(edgeKey(use.key, use.index, use.wanted)) || null;
const steps = (boxing) => boxing.lowering.map((step) => `${step.kind} ${step.axis}`).join(", ");
const stepsOf = (boxing) =>
  el("span", { className: boxing.bytes ? "moves" : "quiet" }, steps(boxing));
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const typeOf = (key, index) => plan.nodes[key].types[index];
const madeAs = (key, index) => plan.nodes[key].signature.results[index];

function nodeLink(key, text) {
  if (!Object.hasOwn(plan.nodes, key)) return el("span", { className: "code" }, text || key);
  const link = el("button", { type: "button", className: "link" }, text || key);
  link.addEventListener("click", () => reveal(key));
  return link;
}

// ---- one op

function edgeCells(use) {
  const type = el("code", {}, typeOf(use.key, use.index));
  const boxing = boxingOf(use);
  if (!boxing) return [type, chips(madeAs(use.key, use.index))];
  return [type, chips(boxing.from), chips(boxing.to), stepsOf(boxing),
    bytes(boxing.bytes), seconds(boxing.seconds), boxing.why];
}

function edgeTable(title, uses, nameOf) {
  const head = [title, "type", "made as", "wanted as", "by", "bytes", "time", "why"];
  const rows = uses.map((use) => [nodeLink(nameOf(use)), ...edgeCells(use)]);
  return table(uses.some(boxingOf) ? head : head.slice(0, 3), rows, [5, 6]);
}

function signatureCells(signature) {
  const side = (placements) => placements.flatMap((p, i) => (i ? ["; ", chips(p)] : [chips(p)]));
  const arrow = signature.operands.length ? [...side(signature.operands), " gives "] : [];
  return el("span", {}, ...arrow, ...side(signature.results));
}

function opFacts(key) {
  const node = plan.nodes[key];
  const facts = [
    ["key", key], ["op", node.op], ["source", node.source], ["module", node.module],
    ["phase", `${node.phase}, stage ${node.stage}`], ["constants", node.constants.join(", ")],
    ["time", node.role ? "" : seconds(node.seconds)],
    ["work", node.role ? "" : node.ways > 1 ? `split ${node.ways} ways` : "whole on every rank"],
    ["flops", node.flops ? node.flops.toExponential(2) : ""],
    ["pinned", pins.get(key) || (node.role && pins.get(node.role.name)) || ""],
  ].filter(([, value]) => value);
  return table(["", ""], facts.map(([name, value]) => [name, el("code", {}, value)]));
}

function opBody(key) {
  const node = plan.nodes[key];
  const body = el("div", {}, opFacts(key));
  const uses = usesBy.get(key);
  if (uses.length) body.append(edgeTable("operand", uses, (use) => use.key));
  const users = usersOf.get(key) || [];
  if (users.length) body.append(edgeTable("used by", users, (use) => use.consumer));
  const chosen = [signatureCells(node.signature), "chosen"];
  const others = node.alternatives.map((other) => [
    signatureCells(other.signature),
    `${other.seconds < 0 ? "-" : "+"}${seconds(Math.abs(other.seconds))} a step`,
  ]);
  body.append(table(["placements", "cost"], [chosen, ...others], [1]));
  return body;
}

const PHASES = { forward: "F", "backward-input": "B", "backward-weight": "W", update: "U" };
const elements = new Map(); // key -> its <details>, once it is drawn

function opElement(key) {
  const node = plan.nodes[key];
  const boxed = [...new Set(usesBy.get(key).map(boxingOf).filter(Boolean))];
  const name = node.role ? `${node.role.kind} ${node.role.name}` : node.op;
  const phase = node.role ? "in" : PHASES[node.phase] || "?";
  const details = el("details", { className: "op" }, el("summary", {},
    el("span", { className: "phase", title: node.phase }, phase),
    el("span", { className: "code" }, name),
    ...node.signature.results.slice(0, 2).map(chips),
    el("code", { className: "quiet" }, node.types.map((type) => type || "-").join(", ")),
    ...boxed.map(stepsOf),
    node.role ? null : el("span", { className: "quiet" }, seconds(node.seconds))));
  details.addEventListener("toggle", () => {
    if (details.open && details.children.length === 1) details.append(opBody(key));
  });
  elements.set(key, details);
  return details;
}

// ---- the tree of modules

function modulePath(node) {
  const held = node.role && (node.role.kind === "parameter" || node.role.kind === "buffer");
  const path = held ? node.role.name.split(".").slice(0, -1).join(".") : node.module;
  return path ? path.split(".") : [];
}

function moduleNode(name) {
  return { name, below: new Map(), keys: [], num: 0, seconds: 0, moves: 0, wire: 0 };
}

const root = moduleNode(plan.model.class);
for (const key of plan.order) {
  const node = plan.nodes[key];
  const boxings = plan.boxings.length ? (usersOf.get(key) || []).map(boxingOf) : [];
  const moved = new Set(boxings.filter((boxing) => boxing && boxing.bytes));
  let at = root;
  const path = [root];
  for (const part of modulePath(node)) {
    if (!at.below.has(part)) at.below.set(part, moduleNode(part));
    at = at.below.get(part);
    path.push(at);
  }
  at.keys.push(key);
  for (const module of path) {
    module.num += node.role ? 0 : 1;
    module.seconds += node.seconds;
    module.moves += moved.size;
    for (const boxing of moved) module.wire += boxing.bytes;
  }
}

function moduleElement(module) {
  const moves = module.moves
    ? el("span", { className: "moves" }, `${plural(module.moves, "collective edge")}, ${bytes(module.wire)}`) : null;
  const details = el("details", { className: "module" }, el("summary", {},
    el("strong", { className: "code" }, module.name),
    el("span", { className: "quiet" }, `${plural(module.num, "op")}, ${seconds(module.seconds)}`), moves));
  module.fill = () => {
    if (details.children.length > 1) return;
    const modules = [...module.below.values()].map(moduleElement);
    details.append(...modules, ...module.keys.map(opElement));
  };
  module.element = details;
  details.addEventListener("toggle", () => details.open && module.fill());
  return details;
}

function reveal(key) {
  let at = root;
  const open = (module) => { module.fill(); module.element.open = true; };
  open(at);
  for (const part of modulePath(plan.nodes[key])) {
    at = at.below.get(part);
    open(at);
  }
  const details = elements.get(key);
  details.open = true;
  const summary = details.firstElementChild;
  summary.focus({ preventScroll: true });
  details.scrollIntoView({ block: "center" });
  history.replaceState(null, "", `#${encodeURIComponent(key)}`);
}

function moveInTree(event) {
  const summary = event.target.closest("summary");
  if (!summary) return;
  const details = summary.parentElement;
  const shown = [...document.querySelectorAll("#tree summary")].filter((s) => s.offsetParent);
  const go = (target) => target && target.focus();
  const actions = {
    ArrowDown: () => go(shown[shown.indexOf(summary) + 1]),
    ArrowUp: () => go(shown[shown.indexOf(summary) - 1]),
    ArrowRight: () => { details.open = true; },
    ArrowLeft: () => {
      if (details.open) details.open = false;
      else go(details.parentElement.closest("details")?.firstElementChild);
    },
  };
  if (!(event.key in actions)) return;
  event.preventDefault();
  actions[event.key]();
}

// ---- tables below and above it

function section(id, ...content) {
  document.getElementById(id).append(...content);
}

function drawTotals() {
  const { predicted, search, options } = plan;
  const parts = (figures, show) => Object.entries(figures)
    .sort(([, a], [, b]) => b - a)
    .map(([name, value]) => `${name} ${show(value)}`).join(", ");
  const training = options.train ? `training with ${options.optimizer}` : "inference";
  document.getElementById("what").append(
    `mesh ${plan.mesh}; hardware ${plan.hardware.name || "unnamed"}; ${training}; ` +
    `${plan.stages.length} stage(s), ${plan.microbatches} microbatch(es), ${plan.schedule.name}; ` +
    `Partita ${plan.partita}`);
  const legend = [["(S(0))", "split"], ["(B)", "whole on every rank"], ["(P(sum))", "to be summed"]];
  document.getElementById("legend").append(...legend.flatMap(([text, what]) => {
    const chip = chips(text).firstChild;
    chip.textContent = text.slice(1, -1);
    return [chip, ` ${what}  `];
  }));
  const gap = search.gap === null ? "gap unknown" : `gap ${(100 * search.gap).toFixed(2)}%`;
  section("totals",
    table(["", "predicted", "of which"], [
      ["step", seconds(predicted.seconds), parts(predicted.seconds_by_part, seconds)],
      ["memory of a rank", bytes(predicted.bytes), parts(predicted.bytes_by_part, bytes)],
      ["search", `${search.solver}: ${search.status}`, `${gap}, ${seconds(search.seconds)}`],
    ]),
    plan.collectives.length
      ? table(["collective", "axis", "count", "payload of a rank"],
        plan.collectives.map((c) => [c.kind, c.axis, String(c.count), bytes(c.bytes)]), [2, 3])
      : el("p", {}, "No collectives."));
  if (plan.reported.length) {
    section("totals", table(["reported op", "nodes", "what"],
      plan.reported.map((r) => [el("code", {}, r.op), String(r.nodes.length), r.why]), [1]));
  }
}

const placeholderOf = new Map(plan.order
  .filter((key) => plan.nodes[key].role)
  .map((key) => [plan.nodes[key].role.name, key]));
const inOrder = (held) => {
  const position = new Map([...placeholderOf.keys()].map((name, i) => [name, i]));
  const rank = (name) => position.get(name) ?? position.size;
  return Object.entries(held).sort(([a], [b]) => rank(a) - rank(b));
};

function drawParameters() {
  const dims = (value) => el("code", {}, `${value.dtype}[${value.shape.join(", ")}]`);
  const names = (name, value) => el("span", {},
    nodeLink(placeholderOf.get(name) ?? "", name),
    value.aliases.length ? el("span", { className: "quiet" }, ` = ${value.aliases.join(" = ")}`) : null);
  const rows = inOrder(plan.parameters).map(([name, value]) => [
    names(name, value), dims(value),
    ...["storage", "use", "gradient", "optimizer"].map((kind) => {
      const placement = value.placements[kind];
      return placement === null ? el("span", { className: "quiet" }, "not trained") : chips(placement);
    }),
  ]);
  section("parameters",
    table(["name", "type", "storage", "use", "gradient", "optimizer state"], rows));
  const buffers = inOrder(plan.buffers).map(([name, value]) =>
    [names(name, value), dims(value), chips(value.placement), value.mutated ? "written back" : ""]);
  if (buffers.length) section("parameters", table(["buffer", "type", "placement", ""], buffers));
}

function drawBoxings() {
  const sorted = [...plan.boxings].sort((a, b) => b.seconds - a.seconds);
  section("boxings", table(["tensor", "from", "to", "by", "bytes", "time", "why", "for"],
    sorted.map((boxing) => [
      nodeLink(boxing.producer), chips(boxing.from), chips(boxing.to),
      stepsOf(boxing),
      bytes(boxing.bytes), seconds(boxing.seconds), boxing.why,
      el("span", {}, ...boxing.consumers.flatMap((key, i) => (i ? [", ", nodeLink(key)] : [nodeLink(key)]))),
    ]), [4, 5]));
  section("outputs", table(["output", "of", "placement"], plan.outputs.map((output) => [
    outputName(output),
    output.value === null ? "nothing" : nodeLink(readRef(output.value)[0], output.value),
    chips(output.placement),
  ])));
}

// ---- search

function textOf(key) {
  const node = plan.nodes[key];
  const { operands, results } = node.signature;
  const name = node.role ? node.role.name : "";
  return [key, name, node.op, node.module, node.source, ...operands, ...results].join(" ").toLowerCase();
}

const texts = plan.order.map((key) => [key, textOf(key)]);

function find(query) {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  const found = document.getElementById("found");
  found.hidden = words.length === 0;
  const matches = words.length
    ? texts.filter(([, text]) => words.every((word) => text.includes(word))) : [];
  const items = matches.slice(0, MOST_FOUND).map(([key]) => el("li", {},
    nodeLink(key), " ", ...plan.nodes[key].signature.results.slice(0, 1).map(chips)));
  const more = matches.length - items.length;
  if (more > 0) items.push(el("li", {}, `and ${more} more: add a word`));
  if (!items.length) items.push(el("li", {}, "nothing: try a part of a name, an op, or S(0)"));
  found.querySelector("ol").replaceChildren(...items);
}

function listen() {
  const search = document.getElementById("search");
  search.addEventListener("input", () => find(search.value));
  document.addEventListener("keydown", (event) => {
    if (event.key === "/" && event.target !== search) {
      event.preventDefault();
      search.focus();
    } else if (event.key === "Escape" && event.target === search) {
      search.value = "";
      find("");
    }
  });
  document.getElementById("tree").addEventListener("keydown", moveInTree);
  document.getElementById("theme").addEventListener("click", () => {
    const rootElement = document.documentElement;
    const isDark = rootElement.dataset.theme
      ? rootElement.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    rootElement.dataset.theme = isDark ? "light" : "dark";
  });
}

drawTotals();
document.getElementById("tree").append(moduleElement(root));
root.fill();
root.element.open = true;
drawParameters();
drawBoxings();
listen();
const asked = decodeURIComponent(location.hash.slice(1));
if (Object.hasOwn(plan.nodes, asked)) reveal(asked);
