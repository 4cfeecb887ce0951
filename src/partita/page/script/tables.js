// Parameters, boxings and outputs as tables, some rows at a time.

const ROWS_AT_ONCE = 100;

function longTable(head, rows, numbers = []) {
  const host = table(head, rows.slice(0, ROWS_AT_ONCE).map((make) => make()), numbers);
  const body = host.querySelector("tbody");
  let shown = ROWS_AT_ONCE;
  if (rows.length <= shown) return host;
  const more = el("button", { type: "button" }, `${rows.length - shown} more`);
  more.addEventListener("click", () => {
    const next = table(head, rows.slice(shown, shown + ROWS_AT_ONCE).map((make) => make()), numbers);
    body.append(...next.querySelector("tbody").children);
    shown += ROWS_AT_ONCE;
    more.textContent = `${rows.length - shown} more`;
    more.hidden = shown >= rows.length;
  });
  return el("div", {}, host, more);
}

function nodeLink(model, key, on, text = key) {
  if (!model.nodes.has(key)) return el("span", { className: "code" }, text);
  const link = el("button", { type: "button", className: "link" }, text);
  link.addEventListener("click", () => on.jump(key));
  return link;
}

function parametersPanel(model, on) {
  const { plan } = model;
  const holder = new Map(model.keys.filter((key) => isHeld(model.nodes.get(key)))
    .map((key) => [model.nodes.get(key).role.name, key]));
  const order = new Map([...holder.keys()].map((name, i) => [name, i]));
  const sorted = (held) => Object.entries(held)
    .sort(([a], [b]) => (order.get(a) ?? order.size) - (order.get(b) ?? order.size));
  const dims = (value) => el("code", {}, `${value.dtype}[${value.shape.join(", ")}]`);
  const named = (name, value) => el("span", {}, nodeLink(model, holder.get(name) ?? "", on, name),
    value.aliases.length ? el("span", { className: "quiet" }, ` = ${value.aliases.join(" = ")}`) : null);
  const rows = sorted(plan.parameters).map(([name, value]) => () => {
    const { storage } = value.placements;
    return [named(name, value), dims(value), model.chips(storage, holder.get(name)),
      ...["use", "gradient", "optimizer"].map((kind) => {
        const placement = value.placements[kind];
        if (placement === null) return el("span", { className: "quiet" }, "not trained");
        return placement === storage ? el("span", { className: "quiet" }, "same") : model.chips(placement, holder.get(name));
      })];
  });
  const found = [longTable(["parameter", "type", "storage", "use", "gradient", "optimizer state"], rows)];
  const buffers = sorted(plan.buffers).map(([name, value]) => () =>
    [named(name, value), dims(value), model.chips(value.placement, holder.get(name)), value.mutated ? "written back" : ""]);
  if (buffers.length) found.push(longTable(["buffer", "type", "placement", ""], buffers));
  return found;
}

function boxingsPanel(model, on) {
  const sorted = [...model.plan.boxings].sort((a, b) => b.seconds - a.seconds);
  const rows = sorted.map((boxing) => () => {
    const open = el("button", { type: "button", className: `boxing ${boxing.bytes ? "moves" : ""}` }, steps(boxing));
    open.addEventListener("click", () => on.boxing([boxing]));
    const maker = model.nodes.get(boxing.producer);
    return [open, seconds(boxing.seconds), bytes(boxing.bytes), model.chips(boxing.from, boxing.producer),
      model.chipsAfter(boxing), nodeLink(model, boxing.producer, on),
      nodeLink(model, boxing.consumers[0], on), el("code", { className: "quiet" },
        maker.source || (model.nodes.get(boxing.consumers[0])?.source ?? ""))];
  });
  if (!rows.length) return [el("p", { className: "quiet" }, "No boxings.")];
  return [longTable(["boxing", "time", "sent", "from", "to", "of", "for", "source"], rows, [1, 2])];
}

function outputsPanel(model, on) {
  const rows = model.plan.outputs.map((output) => () => [outputName(output),
    output.value === null ? "nothing" : nodeLink(model, readRef(output.value)[0], on, output.value),
    model.chips(output.placement, output.value === null ? null : readRef(output.value)[0])]);
  const transfers = model.plan.transfers.map((one) => () => [one.kind, el("code", {}, one.name),
    `${one.sender} \u2192 ${one.receiver}`, bytes(one.bytes), seconds(one.seconds)]);
  const found = [longTable(["output", "of", "placement"], rows)];
  if (transfers.length) {
    found.unshift(longTable(["handed on", "what", "stages", "each time", "time"], transfers, [3, 4]));
  }
  return found;
}
