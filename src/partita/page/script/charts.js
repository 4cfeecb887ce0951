// Stacked bars and curves. Colours are those of Okabe and Ito, which people who confuse
// red and green tell apart; every part has its figure in text, too.

const SERIES = ["blue", "orange", "green", "sky", "purple", "vermillion", "yellow", "grey", "dark"];
const series = (i) => SERIES[i % SERIES.length];

function keyOf(name, i, ...rest) {
  return el("li", {}, el("span", { className: `swatch s-${series(i)}` }), el("span", {}, name), ...rest);
}

// One bar of parts, with its parts' names and figures below.
function stackedBar(title, parts, whole, show) {
  const known = parts.filter(([, value]) => value > 0);
  const total = sum(known.map(([, value]) => value));
  const bar = el("div", { className: "bar", role: "img",
    ariaLabel: `${title}: ${known.map(([name, value]) => `${name} ${show(value)}`).join(", ")}` });
  for (const [name, value, color] of known) {
    const share = value / Math.max(whole, total);
    const part = el("div", { className: `part s-${series(color)}`, title: `${name}: ${show(value)}` },
      share > 0.08 ? `${name} ${show(value)}` : null);
    part.style.width = `${100 * share}%`;
    bar.append(part);
  }
  return el("div", { className: "stacked" }, el("h3", {}, title), bar,
    el("ul", { className: "key" }, ...known.map(([name, value, color]) =>
      keyOf(name, color, el("span", { className: "quiet" }, `${show(value)}, ${percent(value, total)}`)))));
}

function numbered(figures) {
  return Object.entries(figures).sort(([, a], [, b]) => b - a).map(([name, value], i) => [name, value, i]);
}

function stepPanel(model) {
  const { predicted, collectives, options } = model.plan;
  const limit = options.memory_bytes;
  const hidden = Object.entries(predicted.hidden_by_part ?? {});
  return [
    stackedBar(`Predicted step: ${seconds(predicted.seconds)}`, numbered(predicted.seconds_by_part), predicted.seconds, seconds),
    ...hidden.map(([part, s]) => el("p", { className: "quiet" }, `${seconds(s)} more of ${part} pass while ranks compute.`)),
    stackedBar(`Memory of a rank at its peak: ${bytes(predicted.bytes)}${limit ? ` of ${bytes(limit)}` : ""}`,
      numbered(predicted.bytes_by_part), limit ?? predicted.bytes, bytes),
    collectives.length
      ? table(["collective", "axis", "count", "payload of a rank"],
        collectives.map((c) => [c.kind, c.axis, String(c.count), bytes(c.bytes)]), [2, 3])
      : el("p", { className: "quiet" }, "No collectives."),
  ];
}

// ---- what is sent, by axis

function communication(model) {
  const axes = new Map();
  const add = (axis, kind, count, size, time) => {
    if (!axes.has(axis)) axes.set(axis, new Map());
    const kinds = axes.get(axis);
    const known = kinds.get(kind) ?? { count: 0, bytes: 0, seconds: 0 };
    kinds.set(kind, {
      count: known.count + count, bytes: known.bytes + size, seconds: known.seconds + time,
    });
  };
  model.step.sent.forEach((row) => add(...row));
  for (const transfer of model.plan.transfers) {
    const isOften = transfer.kind === "forward" || transfer.kind === "backward";
    const times = isOften ? model.plan.microbatches : 1;
    add("stages", transfer.kind, times, times * transfer.bytes, times * transfer.seconds);
  }
  return axes;
}

function communicationPanel(model) {
  const axes = communication(model);
  if (!axes.size) return [el("p", { className: "quiet" }, "Nothing is sent.")];
  const kinds = [...new Set([...axes.values()].flatMap((of) => [...of.keys()]))].sort();
  const bars = (title, what, show) => {
    const totals = [...axes.values()].map((of) => sum([...of.values()].map((one) => one[what])));
    const most = Math.max(...totals);
    return el("div", {}, el("h3", {}, title), ...[...axes].map(([axis, of], i) => {
      const bar = el("div", { className: "bar thin" });
      for (const kind of kinds.filter((name) => of.has(name))) {
        const one = of.get(kind);
        const part = el("div", { className: `part s-${series(kinds.indexOf(kind))}`, title: `${kind}: ${show(one[what])}` });
        part.style.width = `${100 * one[what] / most}%`;
        bar.append(part);
      }
      return el("div", { className: "axisrow" }, el("span", { className: "code" }, axis), bar,
        el("span", { className: "figure" }, show(totals[i])));
    }));
  };
  const rows = [...axes].flatMap(([axis, of]) => [...of].sort(([, a], [, b]) => b.seconds - a.seconds)
    .map(([kind, one]) => [axis, el("span", {}, el("span", { className: `swatch s-${series(kinds.indexOf(kind))}` }), kind),
      String(one.count), bytes(one.bytes), seconds(one.seconds), percent(one.seconds, model.plan.predicted.seconds)]));
  return [el("div", { className: "columns" },
    bars("Time of a step, by axis", "seconds", seconds), bars("Bytes that a rank sends, by axis", "bytes", bytes)),
  table(["axis", "kind", "times", "sent by a rank", "time", "of the step"], rows, [2, 3, 4, 5])];
}

// ---- memory over time

const CURVE = { width: 1000, height: 170, left: 66, right: 10, top: 10, bottom: 22 };

function memoryPanel(model) {
  const { step } = model;
  const names = step.categories;
  const peaks = step.memory.map((curve) => Math.max(...totalsOf(curve)));
  const limit = model.plan.options.memory_bytes ?? 0;
  const most = Math.max(...peaks, limit);
  const used = names.map((_, i) => step.memory.some((curve) => curve.bytes[i].some((value) => value > 0)));
  const key = el("ul", { className: "key" }, ...names.flatMap((name, i) => (used[i] ? [keyOf(name, i)] : [])));
  const curves = step.memory.map((curve, row) => memoryCurve(model, curve, row, most, limit));
  return [key, el("div", { className: curves.length > 1 ? "columns" : "" }, ...curves)];
}

const totalsOf = (curve) => curve.times.map((_, t) => sum(curve.bytes.map((of) => of[t])));

function rowName(model, row) {
  const { ranks, stages } = model.step.rows[row];
  const stage = model.plan.stages.length > 1 ? `, stage ${stages.join(", ")}` : "";
  return `ranks ${ranksText(ranks)}${stage}`;
}

function niceTicks(most, count, isBinary) {
  const base = isBinary ? 2 : 10;
  const power = base ** Math.floor(Math.log(most / count) / Math.log(base));
  const steps_ = isBinary ? [1, 2] : [1, 2, 5, 10];
  const step = power * (steps_.find((one) => most / (power * one) <= count) ?? steps_[steps_.length - 1]);
  const ticks = [];
  for (let value = 0; value <= most * 1.0001; value += step) ticks.push(value);
  return ticks;
}

function memoryCurve(model, curve, row, most, limit) {
  const { width, height, left, right, top, bottom } = CURVE;
  const end = model.step.seconds || 1;
  const x = (time) => left + (width - left - right) * time / end;
  const y = (value) => height - bottom - (height - top - bottom) * value / (most || 1);
  const svg = draw("svg", { viewBox: `0 0 ${width} ${height}`, class: "curve", tabindex: "0", role: "img" });
  for (const value of niceTicks(most || 1, 4, true)) {
    svg.append(draw("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }),
      draw("text", { x: left - 6, y: y(value) + 4, "text-anchor": "end" }, shortBytes(value)));
  }
  for (const value of niceTicks(end, 6, false)) {
    svg.append(draw("text", { x: x(value), y: height - 6, "text-anchor": value ? "middle" : "start" }, seconds(value)));
  }
  const base = curve.times.map(() => 0);
  curve.bytes.forEach((of, i) => {
    if (!of.some((value) => value > 0)) return;
    const upper = of.map((value, t) => base[t] + value);
    svg.append(draw("path", { class: `area s-${series(i)}`, d: area(curve.times, base, upper, end, x, y) }));
    upper.forEach((value, t) => { base[t] = value; });
  });
  if (limit) {
    svg.append(draw("line", { class: "limit", x1: left, x2: width - right, y1: y(limit), y2: y(limit) }),
      draw("text", { x: width - right, y: y(limit) + 12, "text-anchor": "end", class: "limit" }, `limit ${bytes(limit)}`));
  }
  const peak = base.indexOf(Math.max(...base));
  const said = el("p", { className: "readout" });
  const cross = draw("line", { class: "cross", y1: top, y2: height - bottom });
  svg.append(cross);
  const show = (t, what) => {
    cross.setAttribute("x1", x(curve.times[t]));
    cross.setAttribute("x2", x(curve.times[t]));
    const parts = curve.bytes.map((of, i) => [model.step.categories[i], of[t]])
      .filter(([, value]) => value).sort(([, a], [, b]) => b - a).map(([name, value]) => `${name} ${bytes(value)}`);
    said.textContent = `${what} ${seconds(curve.times[t])}: ${bytes(base[t])} (${parts.join(", ")})`;
  };
  let at = peak;
  const move = (t) => {
    at = Math.min(curve.times.length - 1, Math.max(0, t));
    show(at, "at");
  };
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const time = ((event.clientX - box.left) / box.width * width - left) / (width - left - right) * end;
    const next = curve.times.findIndex((one) => one > time);
    move((next < 0 ? curve.times.length : next) - 1);
  });
  svg.addEventListener("pointerleave", () => show(peak, "most, at"));
  svg.addEventListener("keydown", (event) => {
    if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
    event.preventDefault();
    move(at + (event.key === "ArrowLeft" ? -1 : 1));
  });
  show(peak, "most, at");
  svg.setAttribute("aria-label", `memory of ${rowName(model, row)}: ${said.textContent}`);
  return el("div", { className: "curvebox" }, el("h3", {}, `Memory of one of ${rowName(model, row)}`), svg, said);
}

// Held from each time to the next.
function area(times, lower, upper, end, x, y) {
  const until = (t) => x(times[t + 1] ?? end).toFixed(1);
  let path = "";
  times.forEach((time, t) => {
    path += `${t ? "L" : "M"}${x(time).toFixed(1)} ${y(upper[t]).toFixed(1)}H${until(t)}`;
  });
  for (let t = times.length - 1; t >= 0; t -= 1) {
    path += `L${until(t)} ${y(lower[t]).toFixed(1)}H${x(times[t]).toFixed(1)}`;
  }
  return `${path}Z`;
}
