// The page of two plans side by side: what unfolds or is selected in one does in both.

const NAMES = ["A", "B"];

class DiffApp {
  constructor(a, b) {
    this.models = [a, b];
    this.comparison = new Comparison(a, b);
    this.sides = this.models.map((model, i) => this.side(model, i));
    const jump = (key) => this.jump(key);
    this.models.forEach((model, i) => {
      const { predicted, hardware } = model.plan;
      byId(`what-${NAMES[i]}`).textContent = `${NAMES[i]}: ${model.mesh()} \u00b7 ${hardware.name}`
        + ` \u00b7 step ${seconds(predicted.seconds)} \u00b7 ${bytes(predicted.bytes)} a rank`;
    });
    this.search = new Search(byId("search"), byId("found"), this.joined(), { jump });
    new Tabs(byId("tabs"), byId("panel"), {
      Figures: () => this.figures(),
      "Placed otherwise": () => this.placedOtherwise(jump),
      "In one only": () => this.inOneOnly(jump),
      Parameters: () => this.parameters(jump),
      Communication: () => this.besides((model) => communicationPanel(model)),
      Memory: () => this.besides((model) => memoryPanel(model)),
      Timelines: (host) => this.timelines(host, jump),
    });
    this.listen();
  }

  side(model, i) {
    const name = NAMES[i];
    const jump = (key) => this.jump(key);
    const details = new Details(byId(`details-${name}`), model, {
      jump, boxing: (boxings) => details.boxings(boxings), toggle: (item) => this.sides[i].graph.toggle(item),
      unfold: (item) => this.sides.forEach(({ graph, model: of }) => graph.unfold(of.byId.get(item.id))),
    });
    const graph = new GraphView(byId(`graph-${name}`), model, {
      jump,
      boxing: (boxings) => details.boxings(boxings),
      select: (item, how) => this.select(i, item, how),
      toggled: (item, isOpen) => this.follow(i, item, isOpen),
    });
    details.overview();
    return { model, graph, details };
  }

  other(i, item) {
    return item ? this.models[1 - i].byId.get(item.id) ?? null : null;
  }

  follow(i, item, isOpen) {
    const twin = this.other(i, item);
    const { graph } = this.sides?.[1 - i] ?? {};
    if (graph && twin?.below && graph.layout.open.has(twin) !== isOpen) graph.toggle(twin, isOpen);
  }

  select(i, item, how = {}) {
    const twin = this.other(i, item);
    this.sides[i].graph.select(item, how);
    this.sides[i].details.item(item);
    const there = this.sides[1 - i];
    if (twin) there.graph.reveal(twin);
    there.graph.select(twin);
    if (twin || !item) there.details.item(twin);
    else there.details.show(el("p", { className: "quiet" }, "Not in this plan."));
  }

  jump(key) {
    const i = this.models[0].nodes.has(key) ? 0 : 1;
    const item = this.models[i].items.get(key);
    this.sides[i].graph.reveal(item);
    this.select(i, item, { isFocused: true });
  }

  // Both plans' nodes, for the search.
  joined() {
    const [a, b] = this.models;
    const of = (key) => (a.nodes.has(key) ? a : b);
    const keys = [...a.keys, ...this.comparison.only[1]];
    return {
      keys,
      nodes: new Map(keys.map((key) => [key, of(key).nodes.get(key)])),
      boxings: (key) => of(key).boxings(key),
      wholeOf: new Map([...a.wholeOf, ...b.wholeOf]),
      chips: (placement, key) => of(key).chips(placement, key),
    };
  }

  // ---- the panels

  figures() {
    const predicted = this.models.map((model) => model.plan.predicted);
    const rows = [];
    const add = (name, values, show) => rows.push([name, ...values.map(show),
      signed(values[1] - values[0], show), values[0] ? `${values[0] < values[1] ? "+" : ""}${(100 * (values[1] / values[0] - 1)).toFixed(1)}%` : ""]);
    add("step", predicted.map((p) => p.seconds), seconds);
    this.parts("seconds_by_part").forEach((part) =>
      add(`\u2003${part}`, predicted.map((p) => p.seconds_by_part[part] ?? 0), seconds));
    add("memory of a rank", predicted.map((p) => p.bytes), bytes);
    this.parts("bytes_by_part").forEach((part) =>
      add(`\u2003${part}`, predicted.map((p) => p.bytes_by_part[part] ?? 0), bytes));
    const bars = (title, part, whole, show) => {
      const most = Math.max(...predicted.map((p) => p[whole]));
      const order = this.parts(part);
      return el("div", {}, el("h3", {}, title), ...predicted.map((p, i) => stackedBar(`${NAMES[i]}: ${show(p[whole])}`,
        order.map((name, n) => [name, p[part][name] ?? 0, n]), most, show)));
    };
    return [el("div", { className: "columns" },
      table(["", ...NAMES, "B - A", ""], rows, [1, 2, 3, 4]),
      el("div", {}, bars("Predicted step", "seconds_by_part", "seconds", seconds),
        bars("Memory of a rank at its peak", "bytes_by_part", "bytes", bytes)))];
  }

  parts(name) {
    const all = this.models.map((model) => model.plan.predicted[name]);
    const most = (part) => Math.max(...all.map((of) => of[part] ?? 0));
    return [...new Set(all.flatMap((of) => Object.keys(of)))].sort((a, b) => most(b) - most(a));
  }

  result(i, key) {
    const placement = this.models[i].nodes.get(key).signature.results[0] ?? null;
    return this.models[i].chips(placement, key);
  }

  placedOtherwise(jump) {
    const { changed } = this.comparison;
    const rows = changed.map(({ key, cost }) => () => [nodeLink(this.models[0], key, { jump }),
      this.result(0, key), this.result(1, key), seconds(costOf(this.models[0], key)),
      seconds(costOf(this.models[1], key)), signed(cost, seconds)]);
    return [el("p", { className: "quiet" }, `${plural(changed.length, "node")} with other placements or on another stage; `
      + "costs are of the node and of the boxings made for it."),
    longTable(["node", "A", "B", "cost in A", "in B", "B - A"], rows, [3, 4, 5])];
  }

  inOneOnly(jump) {
    return this.comparison.only.map((keys, i) => {
      const rows = keys.map((key) => () => [nodeLink(this.models[i], key, { jump }),
        this.result(i, key), seconds(this.models[i].nodes.get(key).seconds)]);
      return el("div", {}, el("h3", {}, `${plural(keys.length, "node")} of ${NAMES[i]} alone`),
        keys.length ? longTable(["node", "placed", "time"], rows, [2]) : null);
    });
  }

  parameters(jump) {
    const names = this.comparison.parameters();
    const holder = new Map(this.models[0].keys.filter((key) => isHeld(this.models[0].nodes.get(key)))
      .map((key) => [this.models[0].nodes.get(key).role.name, key]));
    const rows = names.map((name) => () => [nodeLink(this.models[0], holder.get(name) ?? "", { jump }, name),
      ...["storage", "optimizer"].flatMap((kind) => this.models.map((model) => {
        const placement = model.plan.parameters[name].placements[kind];
        return placement === null ? "not trained" : model.chips(placement, holder.get(name));
      }))]);
    return [el("p", { className: "quiet" }, `${plural(names.length, "parameter")} placed otherwise.`),
      longTable(["parameter", "storage in A", "in B", "optimizer state in A", "in B"], rows)];
  }

  besides(panel) {
    return [el("div", { className: "columns" }, ...this.models.map((model, i) =>
      el("div", {}, el("h2", {}, NAMES[i]), ...panel(model))))];
  }

  timelines(host, jump) {
    const hosts = this.models.map(() => el("div", {}));
    host.append(...hosts.flatMap((one, i) => [el("h3", {}, NAMES[i]), one]));
    this.drawn = this.models.map((model, i) => new Timeline(hosts[i], model, {
      jump, boxing: (boxings) => this.sides[i].details.boxings(boxings),
    }));
    return [];
  }

  listen() {
    const both = (act) => this.sides.forEach(({ graph }) => act(graph));
    choose(byId("views"), "both", (view) => both((graph) => graph.setView(view)));
    choose(byId("heats"), "none", (heat) => {
      both((graph) => graph.setHeat(heat));
      showHeat(heat, this.models);
    });
    byId("fit").addEventListener("click", () => both((graph) => graph.fit()));
    byId("fold").addEventListener("click", () => both((graph) => graph.reset()));
    byId("in").addEventListener("click", () => both((graph) => graph.zoom(STEP)));
    byId("out").addEventListener("click", () => both((graph) => graph.zoom(1 / STEP)));
    listenForTheme(() => this.drawn?.forEach((timeline) => timeline.draw()));
    offerStages(this.models);
    listenForSearch();
    resizable(byId("divider"));
  }
}

async function startDiff() {
  const [a, b] = await Promise.all(["a", "b"].map(readData));
  const app = new DiffApp(new Model(a), new Model(b));
  const asked = askedKey();
  if (app.models.some((model) => model.nodes.has(asked))) app.jump(asked);
  document.documentElement.dataset.ready = "yes";
}
