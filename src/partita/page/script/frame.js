// Parts of the page that know nothing of plans: tabs, choices, the theme.

class Tabs {
  constructor(list, host, panels) {
    this.host = host;
    this.panels = panels;
    this.made = new Map();
    this.buttons = Object.keys(panels).map((name) => {
      const tab = el("button", { type: "button", id: `tab-${name.replaceAll(" ", "-")}`, tabIndex: -1 }, name);
      tab.setAttribute("role", "tab");
      tab.addEventListener("click", () => this.show(name));
      return tab;
    });
    list.replaceChildren(...this.buttons);
    list.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (!step) return;
      const at = this.buttons.indexOf(document.activeElement);
      const next = this.buttons[(at + step + this.buttons.length) % this.buttons.length];
      next.focus();
      next.click();
    });
    this.show(Object.keys(panels)[0]);
  }

  show(name) {
    this.buttons.forEach((tab) => {
      const isShown = tab.textContent === name;
      tab.setAttribute("aria-selected", String(isShown));
      tab.tabIndex = isShown ? 0 : -1;
    });
    if (!this.made.has(name)) {
      const host = el("div", { className: "panel" });
      this.host.append(host);
      host.append(...this.panels[name](host) ?? []);
      this.made.set(name, host);
    }
    this.made.forEach((host, of) => { host.hidden = of !== name; });
    this.host.setAttribute("aria-label", name);
  }
}

function press(group, value) {
  group.querySelectorAll("button").forEach((button) =>
    button.setAttribute("aria-pressed", String(button.value === value)));
}

function choose(group, first, act) {
  press(group, first);
  group.addEventListener("click", (event) => {
    const button = event.target.closest("button");
    if (!button) return;
    press(group, button.value);
    act(button.value);
  });
}

// Stages are to be told apart only where there are several.
function offerStages(models) {
  const most = Math.max(...models.map((model) => model.plan.stages.length));
  byId("heats").querySelector('[value="stage"]').hidden = most < 2;
}

function showHeat(heat, models) {
  byId("heatkey").hidden = heat === "none" || heat === "stage";
  byId("stagekey").hidden = heat !== "stage";
  const most = Math.max(...models.map((model) => model.plan.stages.length));
  byId("stagekey").replaceChildren(...Array.from({ length: most }, (_, stage) => keyOf(`stage ${stage}`, stage)));
}

function listenForTheme(changed) {
  const whole = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)");
  byId("theme").addEventListener("click", () => {
    const isDark = whole.dataset.theme ? whole.dataset.theme === "dark" : system.matches;
    whole.dataset.theme = isDark ? "light" : "dark";
    changed();
  });
  system.addEventListener("change", changed);
}

function listenForSearch() {
  document.addEventListener("keydown", (event) => {
    if (event.key !== "/" || event.target.tagName === "INPUT") return;
    event.preventDefault();
    byId("search").focus();
  });
}

function resizable(divider) {
  const main = divider.parentElement;
  const set = (height) => {
    const most = innerHeight - 160;
    main.style.setProperty("--drawer", `${Math.round(Math.min(most, Math.max(40, height)))}px`);
  };
  divider.addEventListener("pointerdown", (event) => divider.setPointerCapture(event.pointerId));
  divider.addEventListener("pointermove", (event) => {
    if (event.buttons & 1) set(innerHeight - event.clientY);
  });
  divider.addEventListener("keydown", (event) => {
    const step = { ArrowUp: 40, ArrowDown: -40 }[event.key];
    if (!step) return;
    event.preventDefault();
    set(byId("drawer").getBoundingClientRect().height + step);
  });
}

function askedKey() {
  try {
    return decodeURIComponent(location.hash.slice(1));
  } catch {
    return ""; // not written by this page
  }
}
