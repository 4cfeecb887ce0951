// The search box: every word must stand in a node's names, op, source or placements.

const MOST_FOUND = 60;

class Search {
  constructor(input, host, model, on) {
    this.input = input;
    this.host = host;
    this.model = model;
    this.on = on; // { jump(key) }
    input.addEventListener("input", () => this.find(input.value));
    input.addEventListener("keydown", (event) => this.inputKey(event));
    host.addEventListener("keydown", (event) => this.listKey(event));
  }

  get texts() {
    this.known ??= this.model.keys.map((key) => [key, this.textOf(key)]);
    return this.known;
  }

  textOf(key) {
    const node = this.model.nodes.get(key);
    const { operands, results } = node.signature;
    const moved = this.model.boxings(key).map(steps);
    const role = node.role ? `${node.role.kind} ${node.role.name}` : node.phase;
    return [key, this.model.wholeOf.get(key) ?? "", role, node.op, node.module, node.source, ...node.types, ...operands, ...results, ...moved]
      .join(" ").toLowerCase();
  }

  find(query) {
    const words = query.toLowerCase().split(/\s+/).filter(Boolean);
    this.host.hidden = words.length === 0;
    const matches = words.length
      ? this.texts.filter(([, text]) => words.every((word) => text.includes(word))) : [];
    const items = matches.slice(0, MOST_FOUND).map(([key]) => el("li", {}, this.entry(key)));
    const more = matches.length - items.length;
    const told = more > 0 ? `and ${more} more: add a word`
      : items.length ? plural(items.length, "node") : "nothing: try a part of a name, an op, or S(0)";
    this.host.replaceChildren(el("ol", {}, ...items), el("p", { className: "quiet" }, told));
  }

  entry(key) {
    const node = this.model.nodes.get(key);
    const entry = el("button", { type: "button", className: "row" },
      el("span", { className: "code" }, key),
      ...node.signature.results.slice(0, 1).map((placement) => this.model.chips(placement, key)));
    entry.addEventListener("click", () => {
      this.close();
      this.on.jump(key);
    });
    return entry;
  }

  close() {
    this.input.value = "";
    this.find("");
  }

  entries() {
    return [...this.host.querySelectorAll("button")];
  }

  inputKey(event) {
    if (event.key === "Escape") this.close();
    else if (event.key === "ArrowDown") this.entries()[0]?.focus();
    else if (event.key === "Enter") this.entries()[0]?.click();
    else return;
    event.preventDefault();
  }

  listKey(event) {
    const all = this.entries();
    const at = all.indexOf(event.target);
    if (event.key === "ArrowDown") all[at + 1]?.focus();
    else if (event.key === "ArrowUp") (all[at - 1] ?? this.input).focus();
    else if (event.key === "Escape") {
      this.close();
      this.input.focus();
    } else return;
    event.preventDefault();
  }
}
