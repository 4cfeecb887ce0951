// The page of one plan: its parts, and how they go together.

class App {
  constructor(model) {
    this.model = model;
    const jump = (key) => this.jump(key);
    const boxing = (boxings) => this.details.boxings(boxings);
    this.details = new Details(byId("details"), model, {
      jump, boxing, toggle: (item) => this.graph.toggle(item), unfold: (item) => this.graph.unfold(item),
    });
    this.graph = new GraphView(byId("graph"), model, {
      jump, boxing, select: (item, how) => this.select(item, how), toggled: () => {},
      viewed: (view) => press(byId("views"), view),
    });
    this.outline = new Outline(byId("outline"), model, { select: (item) => this.select(item, { isFar: true }) });
    this.search = new Search(byId("search"), byId("found"), model, { jump });
    this.tabs({ jump, boxing });
    this.headline();
    this.listen();
    this.details.overview();
  }

  headline() {
    const { predicted, hardware } = this.model.plan;
    byId("what").textContent = `${this.model.mesh()} \u00b7 ${hardware.name} \u00b7 step ${seconds(predicted.seconds)}`
      + ` \u00b7 ${bytes(predicted.bytes)} a rank`;
  }

  // Select a thing; with ``isFar``, bring it into the window.
  select(item, { isFar = false, isFocused = false } = {}) {
    if (isFar && item) this.graph.reveal(item);
    this.graph.select(item, { isFocused });
    if (!isFar) this.outline.select(item);
    else this.outline.mark(item);
    this.details.item(item);
    const key = item?.key ?? "";
    history.replaceState(null, "", key ? `#${encodeURIComponent(key)}` : "#");
  }

  jump(key) {
    const item = this.model.items.get(key);
    this.select(item, { isFar: true, isFocused: true });
    this.outline.select(item);
  }

  tabs(on) {
    const { model } = this;
    const panels = {
      Step: () => stepPanel(model),
      Timeline: (host) => { this.timeline = new Timeline(host, model, on); },
      Memory: () => memoryPanel(model),
      Communication: () => communicationPanel(model),
      Collectives: () => boxingsPanel(model, on),
      Parameters: () => parametersPanel(model, on),
      Outputs: () => outputsPanel(model, on),
    };
    new Tabs(byId("tabs"), byId("panel"), panels);
  }

  listen() {
    choose(byId("views"), "both", (view) => this.graph.setView(view));
    choose(byId("heats"), "none", (heat) => {
      this.graph.setHeat(heat);
      showHeat(heat, [this.model]);
    });
    byId("fit").addEventListener("click", () => this.graph.fit());
    byId("fold").addEventListener("click", () => this.graph.reset());
    byId("in").addEventListener("click", () => this.graph.zoom(STEP));
    byId("out").addEventListener("click", () => this.graph.zoom(1 / STEP));
    listenForTheme(() => this.timeline?.draw());
    offerStages([this.model]);
    listenForSearch();
    resizable(byId("divider"));
  }
}

async function startView() {
  const app = new App(new Model(await readData("plan")));
  const asked = askedKey();
  if (app.model.nodes.has(asked)) app.jump(asked);
  document.documentElement.dataset.ready = "yes";
}
