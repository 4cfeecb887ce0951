// Elements and figures. Names in a plan are a stranger's: they only ever become text
// nodes, never markup.

const SVG = document.querySelector("svg").namespaceURI;

function el(tag, properties, ...children) {
  const element = Object.assign(document.createElement(tag), properties);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

function draw(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

const byId = (id) => document.getElementById(id);

// ---- figures

function scaled(value, units, digits) {
  for (const [size, unit] of units) {
    if (Math.abs(value) >= size) return `${Number((value / size).toPrecision(digits))} ${unit}`;
  }
  return `0 ${units.find(([size]) => size === 1)[1]}`;
}

const TIMES = [[1, "s"], [1e-3, "ms"], [1e-6, "us"], [1e-9, "ns"]];
const SIZES = [[2 ** 40, "TiB"], [2 ** 30, "GiB"], [2 ** 20, "MiB"], [2 ** 10, "KiB"], [1, "B"]];
const seconds = (s) => scaled(s, TIMES, 3);
const bytes = (n) => scaled(n, SIZES, 4);
const shortBytes = (n) => scaled(n, SIZES, 3);
const signed = (value, show) => `${value < 0 ? "-" : "+"}${show(Math.abs(value))}`;
const percent = (part, whole) => (whole ? `${(100 * part / whole).toPrecision(2)}%` : "0%");
const plural = (count, word) => `${count} ${word}${count === 1 ? "" : "s"}`;
const sum = (values) => values.reduce((total, value) => total + value, 0);

function ranksText(ranks) {
  const isRow = ranks.length > 1 && ranks.every((rank, i) => rank === ranks[0] + i);
  return isRow ? `${ranks[0]}\u2013${ranks[ranks.length - 1]}` : ranks.join(", ");
}

function shortened(text, most) {
  return text.length <= most ? text : `${text.slice(0, most - 1)}\u2026`;
}

// ---- placements

const KINDS = { S: "split", B: "broadcast", P: "partial" };

function shardings(placement) {
  return placement === null ? [] : placement.match(/S\([^)]*\)|P\([^)]*\)|B/g) || [];
}

// What stands on a small card: a split in segments is told in full beside the graph.
function shortSharding(text) {
  return text.replace(/;.*\)/, "\u2026)").replace("P(sum)", "P");
}

function chips(placement, axes) {
  if (placement === null) return el("span", { className: "quiet" }, "no tensor");
  const parts = shardings(placement).map((text, i) =>
    el("span", { className: `chip ${KINDS[text[0]]}` },
      el("span", { className: "axis" }, axes[i] ?? String(i)), text));
  return el("span", { className: "chips", title: placement }, ...parts);
}

function table(head, rows, numbers = []) {
  const kind = (i) => (numbers.includes(i) ? "number" : "");
  const line = (tag, cells) =>
    el("tr", {}, ...cells.map((cell, i) => el(tag, { className: kind(i) }, cell)));
  const body = el("tbody", {}, ...rows.map((cells) => line("td", cells)));
  const known = head.some(Boolean) ? [el("thead", {}, line("th", head))] : [];
  return el("div", { className: "scrolls" }, el("table", {}, ...known, body));
}

function factTable(facts) {
  return el("dl", { className: "facts" }, ...facts
    .filter(([, value]) => value !== "" && value !== null && value !== undefined)
    .flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)]));
}

// ---- what the page was given

async function readData(id) {
  const text = atob(byId(id).textContent.trim());
  const packed = Uint8Array.from(text, (character) => character.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}
