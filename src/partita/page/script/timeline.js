// The simulated step: what every row of ranks does, and when. Actions at first, and, as
// soon as they are wide enough, the items that they are made of.

const TRACK = { action: 22, item: 12, gap: 3, row: 14, left: 132, top: 22 };
const NARROWEST = 0.4; // pixels of an item that is drawn

class Timeline {
  constructor(host, model, on) {
    this.model = model;
    this.on = on; // { jump(key), boxing(boxings) }
    this.step = model.step;
    this.window = { from: 0, to: this.step.seconds || 1 };
    this.canvas = el("canvas", { tabIndex: 0, className: "timeline", ariaLabel: "Timeline of the step; arrows move, plus and minus zoom" });
    this.canvas.setAttribute("role", "img");
    this.said = el("p", { className: "readout" });
    this.probe = el("span", { hidden: true });
    this.tracks = this.findTracks();
    host.replaceChildren(this.bar(), this.canvas, this.said, this.summary(), this.probe);
    this.hint();
    this.listen();
    new ResizeObserver(() => this.draw()).observe(host);
  }

  bar() {
    const { step } = this;
    const button = (text, name, act) => {
      const one = el("button", { type: "button", ariaLabel: name, title: name }, text);
      one.addEventListener("click", act);
      return one;
    };
    const works = new Set(step.actions.map(([, , work]) => work));
    const key = [["F", "forward"], ["B", "backward"], ["I", "backward to inputs"], ["W", "backward to weights"]]
      .filter(([work]) => works.has(work)).map(([work, name]) => keyWork(work, `${work} ${name}`));
    return el("div", { className: "bar-line" }, el("ul", { className: "key" }, ...key,
      keyWork("once", "once in a step"), keyWork("axis", "communication"), keyWork("send", "sent to other stages")),
    el("span", { className: "quiet" }, `bubble ${(100 * step.bubble).toFixed(1)}%`),
    el("span", { className: "buttons" }, button("+", "zoom in", () => this.zoom(1 / 1.6)),
      button("\u2212", "zoom out", () => this.zoom(1.6)), button("fit", "whole step", () => this.whole())));
  }

  summary() {
    const rows = this.step.rows.map((row, i) => [rowName(this.model, i), seconds(row.compute_s),
      seconds(row.communication_s), seconds(row.waiting_s), bytes(row.peak_bytes), seconds(row.peak_at_s)]);
    return table(["", "computes", "communicates", "waits", "holds at most", "at"], rows, [1, 2, 3, 4, 5]);
  }

  hint() {
    this.said.textContent = "Drag to move, turn the wheel to zoom, click an item to see it.";
  }

  // ---- what stands on which track

  findTracks() {
    const { step } = this;
    const works = {};
    for (const [name, numbers] of Object.entries(step.works)) {
      const times = step.times[name];
      works[name] = { numbers, times, seconds: Math.max(0, ...times.map(([, end]) => end)) };
    }
    this.works = works;
    const tracks = [];
    step.rows.forEach((_, row) => {
      const actions = step.actions.filter((action) => action[0] === row)
        .map(([, stage, work, microbatch, start]) => ({ stage, work, microbatch, start, of: works[`${stage}${work}`] }));
      const once = step.once.filter((one) => one[0] === row)
        .map(([, number, start]) => ({ number, start, item: step.items[number] }));
      const items = new Set(actions.flatMap((action) => [...new Set(action.of.numbers)]));
      once.forEach((one) => items.add(one.number));
      const axes = [...new Set([...items].map((number) => step.items[number][3]).filter(Boolean))].sort();
      tracks.push({ row, kind: "actions", name: rowName(this.model, row), actions, once });
      for (const axis of [null, ...axes]) {
        tracks.push({ row, kind: "items", name: axis ? `axis ${axis}` : "compute", axis, actions, once });
      }
      for (const to of [...new Set(step.sends.filter((s) => s[0] === row).map((s) => s[1]))].sort()) {
        const sends = step.sends.filter((s) => s[0] === row && s[1] === to);
        tracks.push({ row, kind: "sends", name: to, sends });
      }
    });
    let y = TRACK.top;
    tracks.forEach((track, i) => {
      if (i && track.kind === "actions") y += TRACK.row;
      track.y = y;
      track.height = track.kind === "actions" ? TRACK.action : TRACK.item;
      y += track.height + TRACK.gap;
    });
    this.height = y + 6;
    return tracks;
  }

  // ---- drawing

  color(name) {
    this.probe.style.color = `var(--${name})`;
    return getComputedStyle(this.probe).color;
  }

  draw() {
    const ratio = devicePixelRatio || 1;
    this.width = this.canvas.parentElement.clientWidth - 4;
    if (this.width < 50) return;
    this.canvas.style.height = `${this.height}px`;
    this.canvas.width = this.width * ratio;
    this.canvas.height = this.height * ratio;
    const pen = this.canvas.getContext("2d");
    pen.scale(ratio, ratio);
    pen.font = "11px system-ui, sans-serif";
    this.colors = Object.fromEntries(["text", "quiet", "line", "raised", "work-F", "work-B", "work-I",
      "work-W", "work-once", "work-axis", "work-send", "on-work"].map((name) => [name, this.color(name)]));
    this.hits = [];
    this.drawScale(pen);
    for (const track of this.tracks) {
      pen.fillStyle = this.colors[track.kind === "actions" ? "text" : "quiet"];
      pen.textAlign = "right";
      pen.fillText(shortened(track.name, 22), TRACK.left - 8, track.y + track.height - (track.kind === "actions" ? 7 : 2));
      pen.fillStyle = this.colors.raised;
      pen.fillRect(TRACK.left, track.y, this.width - TRACK.left, track.height);
      pen.textAlign = "left";
      if (track.kind === "actions") this.drawActions(pen, track);
      else if (track.kind === "items") this.drawItems(pen, track);
      else this.drawSends(pen, track);
    }
  }

  x(time) {
    const { from, to } = this.window;
    return TRACK.left + (this.width - TRACK.left) * (time - from) / (to - from);
  }

  drawScale(pen) {
    const { from, to } = this.window;
    const step = niceTicks(to - from, 6, false)[1] ?? to - from;
    pen.textAlign = "center";
    for (let time = Math.ceil(from / step) * step; time <= to; time += step) {
      const x = this.x(time);
      if (x < TRACK.left + 12 || x > this.width - 14) continue;
      pen.fillStyle = this.colors.quiet;
      pen.fillText(seconds(time), x, 12);
      pen.fillStyle = this.colors.line;
      pen.fillRect(x, 16, 1, this.height - 20);
    }
  }

  block(pen, track, start, duration, color, text, hit) {
    const left = Math.max(this.x(start), TRACK.left);
    const right = Math.min(this.x(start + duration), this.width);
    if (right - left < NARROWEST) return;
    pen.fillStyle = this.colors[color];
    const gap = right - left > 4 ? 1 : 0;
    pen.fillRect(left, track.y, right - left - gap, track.height);
    if (hit) this.hits.push({ left, right, y: track.y, height: track.height, ...hit });
    if (text && right - left > text.length * 6.2 + 6) {
      pen.fillStyle = this.colors["on-work"];
      pen.fillText(text, left + 4, track.y + track.height - (track.height > 14 ? 7 : 2.5));
    }
  }

  drawActions(pen, track) {
    const several = this.model.plan.stages.length > this.step.rows.length;
    for (const { stage, work, microbatch, start, of } of track.actions) {
      const text = `${several ? stage : ""}${work}${microbatch ?? ""}`;
      this.block(pen, track, start, of.seconds, `work-${work}`, text, {
        text: `${work}${microbatch ?? ""} of stage ${stage}: from ${seconds(start)}, ${seconds(of.seconds)}`,
      });
    }
    for (const { item, start } of track.once) this.drawItem(pen, track, item, start, item[2], "work-once");
  }

  drawItem(pen, track, item, start, duration, color) {
    const [key, name, , axis, size] = item;
    const sent = size ? `, ${bytes(size)} sent on ${axis ?? "the way"}` : "";
    this.block(pen, track, start, duration, color, name,
      { key, text: `${name}: from ${seconds(start)}, ${seconds(duration)}${sent}` });
  }

  drawItems(pen, track) {
    const { from, to } = this.window;
    const color = track.axis ? "work-axis" : "work-F";
    for (const { of, start, work } of track.actions) {
      if (start > to || start + of.seconds < from) continue;
      of.numbers.forEach((number, i) => {
        const item = this.step.items[number];
        const [begins, ends] = of.times[i].map((at) => start + at);
        if (item[3] !== track.axis || begins > to || ends < from) return;
        this.drawItem(pen, track, item, begins, ends - begins, track.axis ? color : `work-${work}`);
      });
    }
    for (const { item, start } of track.once) {
      if (item[3] === track.axis) this.drawItem(pen, track, item, start, item[2], track.axis ? color : "work-once");
    }
  }

  drawSends(pen, track) {
    for (const [, to, name, start, duration, size] of track.sends) {
      this.block(pen, track, start, duration, "work-send", name,
        { text: `${name} ${to}: from ${seconds(start)}, ${seconds(duration)}, ${bytes(size)}` });
    }
  }

  // ---- the window in time

  whole() {
    this.window = { from: 0, to: this.step.seconds || 1 };
    this.draw();
  }

  zoom(factor, around = (this.window.from + this.window.to) / 2) {
    const whole = this.step.seconds || 1;
    const { from, to } = this.window;
    const width = Math.min(whole, Math.max(whole / 1e5, (to - from) * factor));
    const start = around - (around - from) * width / (to - from);
    this.move(start, width);
  }

  move(from, width = this.window.to - this.window.from) {
    const whole = this.step.seconds || 1;
    const start = Math.min(Math.max(0, from), whole - width);
    this.window = { from: start, to: start + width };
    requestAnimationFrame(() => this.draw());
  }

  timeAt(event) {
    const x = event.clientX - this.canvas.getBoundingClientRect().left;
    const { from, to } = this.window;
    return from + (to - from) * (x - TRACK.left) / (this.width - TRACK.left);
  }

  hitAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = [event.clientX - box.left, event.clientY - box.top];
    return this.hits?.findLast((hit) => x >= hit.left && x <= hit.right && y >= hit.y && y <= hit.y + hit.height);
  }

  listen() {
    const { canvas } = this;
    let held = null;
    canvas.addEventListener("pointerdown", (event) => {
      held = { time: this.timeAt(event), x: event.clientX, moved: false };
    });
    canvas.addEventListener("pointermove", (event) => {
      if (held && event.buttons & 1) {
        held.moved ||= Math.abs(event.clientX - held.x) > 3;
        if (held.moved) this.move(this.window.from + held.time - this.timeAt(event));
        return;
      }
      const hit = this.hitAt(event);
      canvas.classList.toggle("pointing", Boolean(hit?.key));
      if (hit) this.said.textContent = hit.text;
    });
    canvas.addEventListener("click", (event) => {
      const key = held?.moved ? null : this.hitAt(event)?.key;
      held = null;
      if (!key) return;
      const boxing = this.model.plan.boxings.find((one) => one.key === key);
      if (boxing) this.on.boxing([boxing]);
      else this.on.jump(key);
    });
    canvas.addEventListener("wheel", (event) => {
      event.preventDefault();
      if (event.shiftKey) this.move(this.window.from + (event.deltaY || event.deltaX) * (this.window.to - this.window.from) / 800);
      else this.zoom(Math.exp(event.deltaY * 0.002), this.timeAt(event));
    }, { passive: false });
    canvas.addEventListener("keydown", (event) => {
      const width = this.window.to - this.window.from;
      const acts = {
        ArrowLeft: () => this.move(this.window.from - width / 8),
        ArrowRight: () => this.move(this.window.from + width / 8),
        "+": () => this.zoom(1 / 1.6), "=": () => this.zoom(1 / 1.6),
        "-": () => this.zoom(1.6), 0: () => this.whole(),
      };
      if (!(event.key in acts)) return;
      event.preventDefault();
      acts[event.key]();
    });
  }
}

function keyWork(work, name) {
  return el("li", {}, el("span", { className: `swatch w-${work}` }), name);
}
