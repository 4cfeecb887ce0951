// What is known of one thing: an op, a module, a boxing. As ``partita explain`` tells it.

const MOST_LISTED = 12;
const MOST_UNFOLDED = 400; // ops, at once
const ROUNDING_S = 1e-14; // far below what any op takes

const isNone = (value) => Math.abs(value) < ROUNDING_S;
const change = (cost) => (isNone(cost) ? "+0 s" : signed(cost, seconds));

class Details {
  constructor(host, model, on) {
    this.host = host;
    this.model = model;
    this.on = on; // { jump(key), boxing(boxings), toggle(item), unfold(item) }
  }

  show(...parts) {
    this.host.replaceChildren(...parts.filter((part) => part !== null && part !== undefined));
    this.host.scrollTop = 0;
  }

  item(item) {
    if (!item) this.overview();
    else if (item.below) this.module(item);
    else this.op(item.key);
  }

  link(key, text = key) {
    if (!this.model.nodes.has(key)) return el("span", { className: "code" }, text);
    const link = el("button", { type: "button", className: "link", title: key }, text);
    link.addEventListener("click", () => this.on.jump(key));
    return link;
  }

  button(text, act) {
    const button = el("button", { type: "button" }, text);
    button.addEventListener("click", act);
    return button;
  }

  section(title, ...content) {
    return el("section", {}, el("h3", {}, title), ...content);
  }

  code(text) {
    return el("code", {}, text);
  }

  // ---- the plan, while nothing is selected

  overview() {
    const { plan } = this.model;
    const { predicted, search, options } = plan;
    const limit = options.memory_bytes ? ` of ${bytes(options.memory_bytes)}` : "";
    const gap = search.gap === null ? "gap unknown" : `gap ${(100 * search.gap).toFixed(2)}%`;
    this.show(el("h2", {}, "The plan"), factTable([
      ["model", this.code(plan.model.class)],
      ["mesh", this.code(this.model.mesh())],
      ["hardware", plan.hardware.name],
      ["for", options.train ? `training with ${options.optimizer}` : "inference"],
      ["step", seconds(predicted.seconds)],
      ["memory", `${bytes(predicted.bytes)} a rank${limit}`],
      ["room", search.memory_price
        ? `1 MiB more on a rank would save about ${seconds(2 ** 20 * search.memory_price)} a step` : ""],
      ["stages", plan.stages.length > 1
        ? `${plan.stages.length}, ${plan.schedule.name}, ${plural(plan.microbatches, "microbatch").replace("hs", "hes")}` : ""],
      ["search", `${search.solver}: ${search.status}, ${gap}, ${seconds(search.seconds)}`],
      ["made again", plan.recompute.length ? `${plural(plan.recompute.length, "call")} in the backward` : ""],
      ["fused", plan.fusion.length ? plural(plan.fusion.length, "group") : ""],
      ["joined", plan.joined.length ? plural(plan.joined.length, "group") + " of products" : ""],
    ]),
    plan.stages.length > 1 ? this.section("Stages",
      table(["stage", "ranks", "mesh", "nodes"], plan.stages.map((stage, i) => [String(i),
        ranksText(stage.ranks), this.code(stage.mesh), String(stage.nodes.length)]), [3])) : null,
    plan.reported.length ? this.section("Reported ops",
      table(["op", "nodes", "what"], plan.reported.map((r) => [this.code(r.op), String(r.nodes.length), r.why]), [1])) : null,
    this.section("How to read the graph", legend(this.model)));
  }

  // ---- one op

  op(key) {
    const node = this.model.nodes.get(key);
    const { model } = this;
    const ranks = model.plan.stages[node.stage].ranks;
    const again = model.plan.recompute.includes(key) ? "once more for the backward" : "";
    const whole = model.wholeOf.get(key);
    const groupIn = (groups) => groups.find((keys) => keys.includes(key));
    const [group, joined] = [model.plan.fusion, model.plan.joined].map(groupIn);
    this.show(el("h2", { className: "code" }, node.role ? `${node.role.kind} ${node.role.name}` : model.name(key)),
      el("p", { className: "code quiet small" }, key),
      this.signature(node.signature, key),
      factTable([
        ["type", this.code(node.types.map((type) => type ?? "-").join(", "))],
        ["source", node.source ? this.code(node.source) : ""],
        ["module", node.module ? this.code(node.module) : ""],
        ["phase", node.role ? "" : node.phase],
        ["stage", model.plan.stages.length > 1 ? `${node.stage}, ranks ${ranksText(ranks)}` : ""],
        ["part of", whole ? `${whole}, ${model.plan.expanded[whole].op}, taken apart` : ""],
        ["constants", node.constants.length ? this.code(node.constants.join(", ")) : ""],
        ["time", node.role ? (node.seconds ? `${seconds(node.seconds)} to update` : "") : seconds(node.seconds)],
        ["held", `${bytes(model.heldBytes(key))} a rank`],
        ["work", node.role ? "" : node.ways > 1 ? `split ${node.ways} ways` : "whole on every rank"],
        ["flops", node.flops ? node.flops.toExponential(2) : ""],
        ["made", again],
        ["fused", group ? `with ${group.length - 1} more` : ""],
        ["joined", joined ? `with ${joined.length - 1} more, one product` : ""],
        ["why", this.reason(key, node)],
        ["formula", this.formula(model.formulaOf(key))],
      ]),
      node.role ? this.held(key, node) : null,
      this.alternatives("Alternatives, by what a step takes more", key, node),
      whole ? this.alternatives(`Alternatives of ${whole}`, key, model.plan.expanded[whole], false) : null,
      this.uses("Operands", model.usesBy.get(key), (use) => use.key),
      this.uses("Used by", model.users(key), (use) => use.consumer));
  }

  // What the time follows from: sizes, axes, the figures of the hardware.
  formula(found) {
    if (!found) return null;
    const [text, stands] = found;
    return el("div", { className: "formula" }, this.code(text),
      stands ? el("p", { className: "quiet small" }, `with ${stands}`) : null);
  }

  signature({ operands, results }, key) {
    const side = (placements) => placements.map((p) => this.model.chips(p, key));
    const arrow = operands.length ? [...side(operands), el("span", { className: "quiet" }, " \u2192 ")] : [];
    return el("span", { className: "signature" }, ...arrow, ...side(results));
  }

  apart({ signature, held }, key) {
    if (!held || held.optimizer === signature.results[0]) return null;
    return el("span", {}, el("span", { className: "quiet" }, " updated as "), this.model.chips(held.optimizer, key));
  }

  reason(key, node) {
    if (this.model.asked.has(key)) return this.model.asked.get(key);
    if (!node.alternatives.length) return "the plan keeps no alternative to it";
    const best = Math.min(...node.alternatives.map((other) => other.seconds));
    if (best >= -ROUNDING_S) return "the cheapest for the whole step";
    const { status, memory_price: price } = this.model.plan.search;
    const held = node.alternatives.find((other) => other.seconds === best).held_bytes;
    const worth = price && held > 0
      ? `, but hold ${bytes(held)} more, which are worth ${seconds(held * price)}` : "";
    return `taken although another would gain ${seconds(-best)} by itself (search: ${status})${worth}`;
  }

  held(key, node) {
    const parameter = this.model.plan.parameters[node.role.name];
    if (!parameter) return null;
    const rows = ["storage", "use", "gradient", "optimizer"].map((kind) => {
      const placement = parameter.placements[kind];
      return [kind, placement === null ? "not trained" : this.model.chips(placement, key)];
    });
    if (parameter.aliases.length) rows.push(["tied to", this.code(parameter.aliases.join(", "))]);
    return this.section("Placements", factTable(rows));
  }

  alternatives(title, key, node, isNode = true) {
    if (!node.alternatives.length) return null;
    const rows = node.alternatives.map((other) => {
      const boxed = isNode ? this.boxedFor(key, node, other.signature) : [];
      const parts = [
        ["compute", other.compute_s, seconds], ["boxings", other.seconds - other.compute_s, seconds],
        ["sent", other.bytes, bytes], ["held", other.held_bytes, bytes],
      ].filter(([, value]) => !isNone(value)).map(([what, value, as]) => `${what} ${signed(value, as)}`);
      return el("li", {},
        el("span", { className: "cost" }, change(other.seconds)),
        el("div", {}, this.signature(other.signature, key), this.apart(other, key),
          el("p", { className: "quiet small" }, parts.join(", ")),
          boxed.length ? el("p", { className: "quiet small" }, "boxed for ", this.link(boxed[0]),
            boxed.length > 1 ? ` and ${boxed.length - 1} more` : "") : null));
    });
    return this.section(title, el("ol", { className: "alternatives" }, ...rows));
  }

  boxedFor(key, node, signature) {
    const uses = this.model.usesBy.get(key);
    const operands = uses.filter((use, i) => this.model.made(use) !== signature.operands[i]);
    const users = this.model.users(key).filter((use) => use.wanted !== signature.results[use.index]);
    return [...new Set([...operands.map((use) => use.key), ...users.map((use) => use.consumer)])];
  }

  uses(title, uses, nameOfEnd) {
    if (!uses.length) return null;
    const rows = uses.slice(0, MOST_LISTED).map((use) => el("li", {},
      this.link(nameOfEnd(use)), el("div", {},
        el("code", { className: "quiet small" }, this.model.type(use) ?? "no tensor", " "),
        this.model.chips(this.model.made(use), use.key)),
      use.boxing ? this.boxingLine(use.boxing) : null));
    if (uses.length > MOST_LISTED) rows.push(el("li", { className: "quiet" }, `and ${uses.length - MOST_LISTED} more`));
    return this.section(title, el("ul", { className: "uses" }, ...rows));
  }

  boxingLine(boxing) {
    const line = el("button", { type: "button", className: `boxing ${boxing.bytes ? "moves" : ""}` },
      "\u21c4 ", steps(boxing), ` \u00b7 ${bytes(boxing.bytes)} \u00b7 ${seconds(boxing.seconds)}`);
    line.addEventListener("click", () => this.on.boxing([boxing]));
    return el("div", {}, line, " ", this.model.chipsAfter(boxing));
  }

  // ---- boxings

  boxings(boxings) {
    const { model } = this;
    this.show(...boxings.slice(0, MOST_LISTED).map((boxing) => {
      const made = model.nodes.get(boxing.producer);
      const line = (key) => {
        const node = model.nodes.get(key);
        const source = node && (node.source || node.module) ? ` (${node.source || "?"} in ${node.module || "the model itself"})` : "";
        return el("div", {}, this.link(key), el("span", { className: "quiet small" }, source));
      };
      return el("section", {}, el("h2", {}, steps(boxing)),
        factTable([
          ["tensor", this.code(made.types[boxing.index] ?? "")],
          ["made as", model.chips(boxing.from, boxing.producer)],
          ["by", line(boxing.producer)],
          ["wanted as", model.chipsAfter(boxing)],
          ["by", el("div", {}, ...boxing.consumers.slice(0, MOST_LISTED).map(line))],
          ["sent", `${bytes(boxing.bytes)} by a rank in a step`],
          ["time", seconds(boxing.seconds)],
          ["why", boxing.why],
          ["without", this.removals(boxing)],
        ]),
        table(["step", "to", "payload", "sent", "time"], boxing.lowering.map((step) => [
          `${step.kind} ${step.axis}`, model.chipsAfter(boxing, step.to),
          bytes(step.payload), bytes(step.bytes), seconds(step.seconds)]), [2, 3, 4]),
        factTable(model.formulasOfSteps(boxing).map((found) => ["formula", this.formula(found)])));
    }), boxings.length > MOST_LISTED ? el("p", { className: "quiet" }, `and ${boxings.length - MOST_LISTED} more`) : null);
  }

  // The ways to do without a boxing, as compiler/plan/explain_boxing.py finds them.
  removals(boxing) {
    const ways = [];
    const of = (key) => this.model.nodes.get(key)?.alternatives ?? [];
    const makes = of(boxing.producer).filter((o) => o.signature.results[boxing.index] === boxing.to);
    const least = (others) => Math.min(...others.map((other) => other.seconds));
    if (makes.length) ways.push([least(makes), `${boxing.producer} makes it as ${boxing.to}`]);
    const taken = boxing.consumers.map((key) => of(key).filter((other) =>
      this.model.usesBy.get(key).every((use, i) => use.key !== boxing.producer
        || use.index !== boxing.index || other.signature.operands[i] === boxing.from)));
    if (taken.every((others) => others.length)) {
      const shared = boxing.consumers.length > 1 ? boxing.seconds : 0;
      ways.push([sum(taken.map(least)) - shared,
        `${boxing.consumers[0]}${boxing.consumers.length > 1 ? ` and ${boxing.consumers.length - 1} more take` : " takes"} it as ${boxing.from}`]);
    }
    if (!ways.length) return "no alternative that the plan keeps does without it";
    return el("div", {}, ...ways.map(([cost, what]) =>
      el("div", {}, `${change(cost)} a step, if `, this.code(what))));
  }

  // ---- modules

  module(item) {
    const { figures } = item;
    const ops = [];
    const boxed = new Set();
    const visit = (one) => {
      if (one.below) one.below.forEach(visit);
      else {
        ops.push(one);
        this.model.boxings(one.key).forEach((boxing) => boxed.add(boxing));
      }
    };
    visit(item);
    const slowest = ops.filter((one) => one.figures.seconds && one.figures.ops)
      .sort((a, b) => b.figures.seconds - a.figures.seconds);
    const moves = [...boxed].filter((boxing) => boxing.bytes).sort((a, b) => b.seconds - a.seconds);
    const whole = this.model.root.figures.seconds;
    this.show(el("h2", { className: "code" }, item.path || item.name),
      item === this.model.root ? null : el("p", { className: "buttons" },
        this.button("fold / unfold", () => this.on.toggle(item)),
        ops.length <= MOST_UNFOLDED && item.below.some((one) => one.below)
          ? this.button("unfold all of it", () => this.on.unfold(item)) : null),
      factTable([
        ["ops", String(figures.ops)],
        ["compute", `${seconds(figures.seconds)}, ${percent(figures.seconds, whole)} of the plan's`],
        ["forward", seconds(figures.forward)],
        ["backward", seconds(figures.backward)],
        ["collectives", figures.moves
          ? `${plural(figures.moves, "edge")}, ${bytes(figures.moveBytes)} sent, ${seconds(figures.moveSeconds)}` : "none"],
        ["stages", this.model.plan.stages.length > 1 ? this.model.stagesOf(item).join(", ") : ""],
      ]),
      slowest.length ? this.section("Slowest ops", el("ul", { className: "ranked" }, ...slowest.slice(0, MOST_LISTED)
        .map((one) => el("li", {}, el("span", { className: "cost" }, seconds(one.figures.seconds)),
          this.link(one.key, one.key.startsWith(item.path) ? one.key.slice(item.path.length).replace(/^[./]/, "") : one.key))))) : null,
      moves.length ? this.section("Slowest collectives", el("ul", { className: "uses" }, ...moves.slice(0, MOST_LISTED)
        .map((boxing) => el("li", {}, this.boxingLine(boxing), this.link(boxing.producer))))) : null);
  }
}

function legend(model) {
  const axes = [...new Set(model.stageAxes.flat().map((axis) => axis.name))];
  const line = (sign, text) => [sign, el("span", {}, text)];
  const stroke = (kind) => {
    const svg = draw("svg", { width: 34, height: 12, class: "sample" });
    const points = [{ x: 1, y: 6 }, { x: 32, y: 6 }];
    svg.append(draw("g", { class: `edge ${kind}` },
      draw("path", { class: kind === "saved" ? "saved" : "line", d: curve(points) }),
      kind === "saved" ? null : arrow(points)));
    return svg;
  };
  return el("dl", { className: "facts legend" }, ...[
    line(chips("(S(0))", axes), "each rank of the axis holds a chunk of this dim"),
    line(chips("(B)", axes), "each holds the whole"),
    line(chips("(P(sum))", axes), "the ranks' values add up to it (P on a card); max, min said"),
    line(stroke("plain"), "a tensor goes as it is"),
    line(stroke("plain back"), "in the backward, drawn upwards"),
    line(stroke("moves"), "a collective changes its placement: kind, axis, bytes sent, time"),
    line(stroke("local"), "re-placed without sending"),
    line(stroke("saved"), "saved by the forward for what is selected, or by what is"),
    line(el("span", { className: "pill" }, "h.0: add"), "comes from, or goes to, outside; click to go there"),
    line("F B W", "forward; backward to inputs, to weights"),
  ].flatMap(([sign, text]) => [el("dt", {}, sign), el("dd", {}, text)]));
}
