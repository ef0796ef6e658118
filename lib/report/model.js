"use strict";
// The data of the page and how its figures are read: names, layers, cells.

const data = JSON.parse(document.getElementById("data").textContent);

/** Names are stored as the number of a kind and the numbers between the kind's parts. */
function nameOf(row) {
  const parts = data.kinds[data.rows.kind[row]], numbers = data.rows.numbers[row];
  return parts.map((part, i) => (i ? numbers[i - 1] : "") + part).join("");
}

const rowCount = data.rows.kind.length;
const byName = new Map();
for (let row = 0; row < rowCount; ++row) byName.set(nameOf(row), row);

/** A kind with stars for its numbers; the first of them is the layer. */
const kindName = data.kinds.map((parts) => parts.join("*"));
const kindHasLayer = data.kinds.map((parts) => parts.length > 1);

/** What most kinds begin with is left out of labels: "model.layers.*.". */
const commonPrefix = (() => {
  const counts = new Map();
  for (const k of data.rows.kind) if (kindHasLayer[k]) counts.set(data.kinds[k][0], (counts.get(data.kinds[k][0]) || 0) + 1);
  return counts.size ? [...counts].sort((a, b) => b[1] - a[1])[0][0] : null;
})();
const kindLabel = data.kinds.map((parts, k) =>
  kindHasLayer[k] && parts[0] === commonPrefix ? parts.slice(1).join("*").replace(/^\./, "") || kindName[k] : kindName[k]);

const layerOf = (row) => (kindHasLayer[data.rows.kind[row]] ? data.rows.numbers[row][0] : null);
// A figure may be infinite, as an error relative to zeros. Charts leave it out; the map and the table show it if it is bad.
const isBadInfinity = (metric, value) =>
  metric.bad && ((metric.cell === "max" && value === Infinity) || (metric.cell === "min" && value === -Infinity));
data.rows.figures.forEach((column, m) => column.forEach((value, row) => {
  if (typeof value !== "string") return;
  const infinite = value === "inf" ? Infinity : -Infinity;
  column[row] = isBadInfinity(data.metrics[m], infinite) ? infinite : null;
}));
const anyFigure = (metric, row) => data.rows.figures[metric][row];
const figure = (metric, row) => (Number.isFinite(anyFigure(metric, row)) ? anyFigure(metric, row) : null);

/** Orders names with numbers in them as numbers. */
const natural = new Intl.Collator("en", { numeric: true }).compare;

const compact = d3.format(".4~g"), thousands = d3.format(",");
/** A figure as text. */
function figureText(metric, value) {
  if (value === null || value === undefined) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "infinite" : "−infinite";
  switch (metric.unit) {
    case "share": return value === 0 || value >= 0.0001 ? d3.format(".2f")(100 * value) + " %" : compact(100 * value) + " %";
    case "dB": return d3.format(".2f")(value) + " dB";
    case "cosine": return d3.format(".5f")(value);
    case "count": return thousands(value);
    case "flag": return value === 0 ? "no" : value === 1 ? "yes" : thousands(value);
    default: return compact(value);
  }
}

function bytesText(bytes) {
  const units = ["B", "kB", "MB", "GB", "TB"];
  let at = 0;
  for (; bytes >= 999.5 && at < units.length - 1; ++at) bytes /= 1000;
  return (at ? d3.format(".3~r")(bytes) : bytes) + " " + units[at];
}

/** What one cell shows of its rows. */
const kReduce = { max: d3.max, min: d3.min, mean: d3.mean, sum: d3.sum };
function cellValue(metric, rows) {
  const values = [];
  for (const row of rows) {
    const value = anyFigure(metric, row);
    if (value !== null) values.push(value);
  }
  return values.length ? kReduce[data.metrics[metric].cell](values) : null;
}

/** The page's theme: as chosen, else as the system says. */
const darkQuery = window.matchMedia("(prefers-color-scheme: dark)");
let theme = null;
const isDark = () => (theme === null ? darkQuery.matches : theme === "dark");
const cssColor = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

/** Bounds of an axis or a colour scale around figures from `low` to `high`. They span at least a tenth of a number,
    5 % of a share, 0.01 of a cosine, 3 dB: figures that hardly differ look alike. */
function spanOf(metric, low, high) {
  if (metric.unit === "ratio") return [1, Math.max(high, 1.1)];
  if (metric.unit === "count" || metric.unit === "flag") return [0, Math.max(high, 1)];
  const least = { share: Math.min(0.05, high > 0 ? high : 0.05), cosine: 0.01, dB: 3 }[metric.unit]
    ?? (0.1 * Math.max(Math.abs(low), Math.abs(high)) || 1);
  if (high - low >= least) return [low, high];
  let from = (low + high - least) / 2;
  if (metric.unit === "share" || metric.unit === "cosine") from = Math.min(from, Math.max(1, high) - least);
  if (metric.unit === "share") from = Math.max(from, 0);
  return [from, from + least];
}

/** The value of a metric at which nothing is wrong, as of tensors that nothing touched; null: there is none. */
const soundValue = (metric) => (!metric.bad ? null : metric.unit === "ratio" || metric.unit === "cosine" ? 1 : 0);

/** Without the values of untouched tensors, unless all are untouched. */
function touched(metric, values) {
  const some = values.filter((v) => v !== soundValue(metric));
  return some.length ? some : values;
}

/** Bounds of a colour scale, which starts at the figures: the best has the colour of the best. */
function colorSpan(metric, low, high) {
  const [from, to] = spanOf(metric, low, high);
  if (metric.unit === "ratio" || metric.unit === "count" || metric.unit === "flag") return [from, to];
  if (metric.cell === "min" && metric.bad) return [Math.min(low, high - (to - from)), high];
  return [low, Math.max(high, low + (to - from))];
}

/** From the least to the most striking: what is worse is redder, the rest goes by brightness. */
function colorScale(metric, low, high) {
  const flip = metric.cell === "min" && metric.bad;
  const ramp = metric.bad ? (isDark() ? (t) => d3.interpolateInferno(0.18 + 0.72 * t) : (t) => d3.interpolateOrRd(0.08 + 0.87 * t))
                          : (isDark() ? (t) => d3.interpolateViridis(0.08 + 0.87 * t) : (t) => d3.interpolateYlGnBu(0.1 + 0.8 * t));
  const logarithmic = metric.unit === "number" && low > 0 && high / low > 100;
  const place = (logarithmic ? d3.scaleLog() : d3.scaleLinear()).domain(high > low ? [low, high] : [low, low + 1]);
  return (value) => ramp(flip ? 1 - place(value) : place(value));
}
