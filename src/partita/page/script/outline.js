// The tree of modules as a list: for the keyboard, for screen readers, for finding one's
// way. Rows are made when their module unfolds.

class Outline {
  constructor(host, model, on) {
    this.host = host;
    this.model = model;
    this.on = on; // { select(item) }
    this.elements = new Map();
    host.replaceChildren(this.module(model.root));
    this.open(model.root);
    host.addEventListener("keydown", (event) => this.key(event));
  }

  row(item) {
    const { figures } = item;
    const name = el("span", { className: "name code" }, item.below ? nameOf(item) : lastName(this.model, item));
    if (item.below) {
      const mark = item.changes ? el("span", { className: "mark" }, `\u0394 ${item.changes}`) : null;
      return [name, mark, el("span", { className: "quiet figure" }, figures.seconds ? seconds(figures.seconds) : "")];
    }
    const node = this.model.nodes.get(item.key);
    const mark = this.model.marks.has(item.key) ? el("span", { className: "mark" }, "\u0394") : null;
    return [name, mark, el("span", { className: "quiet figure" }, node.role ? node.role.kind : node.seconds ? seconds(node.seconds) : "view")];
  }

  module(item) {
    const summary = el("summary", {}, ...this.row(item));
    const details = el("details", {}, summary);
    summary.addEventListener("click", () => this.on.select(item));
    details.addEventListener("toggle", () => details.open && this.fill(item));
    this.elements.set(item, { details, row: summary });
    return details;
  }

  op(item) {
    const row = el("button", { type: "button", className: "row" }, ...this.row(item));
    row.addEventListener("click", () => this.on.select(item));
    this.elements.set(item, { row });
    return row;
  }

  fill(item) {
    const { details } = this.elements.get(item);
    if (details.children.length > 1) return;
    details.append(...item.below.map((one) => (one.below ? this.module(one) : this.op(one))));
    this.mark(this.selected);
  }

  open(item) {
    for (const module of this.model.pathTo(item)) {
      if (!module.below) continue;
      this.fill(module);
      this.elements.get(module).details.open = module !== item || module === this.model.root
        || this.elements.get(module).details.open;
    }
  }

  mark(item) {
    this.elements.get(this.selected)?.row.removeAttribute("aria-current");
    this.selected = item;
    this.elements.get(item)?.row.setAttribute("aria-current", "true");
  }

  select(item) {
    if (item) this.open(item);
    this.mark(item);
    this.elements.get(item)?.row.scrollIntoView({ block: "nearest" });
  }

  key(event) {
    const row = event.target.closest("summary, button.row");
    if (!row) return;
    const shown = [...this.host.querySelectorAll("summary, button.row")].filter((one) => one.offsetParent);
    const details = row.tagName === "SUMMARY" ? row.parentElement : null;
    const go = (target) => target && target.focus();
    const actions = {
      ArrowDown: () => go(shown[shown.indexOf(row) + 1]),
      ArrowUp: () => go(shown[shown.indexOf(row) - 1]),
      ArrowRight: () => details && (details.open = true),
      ArrowLeft: () => {
        if (details?.open) details.open = false;
        else go(row.closest("details > :not(summary)")?.parentElement.closest("details")?.firstElementChild);
      },
    };
    if (!(event.key in actions)) return;
    event.preventDefault();
    actions[event.key]();
  }
}
