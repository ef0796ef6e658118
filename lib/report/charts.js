// Charts by layer, and histograms of codes and block scales.

/** Charts are drawn in their own pixels, so that their texts stay readable where there is little room. */
const kRoom = document.documentElement.clientWidth;
const kWidth = kRoom < 640 ? Math.max(250, kRoom - 60) : kRoom < 1000 ? 330 : 460, kHeight = 190, kMargin = { top: 10, right: 12, bottom: 34, left: 56 };
/** Lines that coincide stay distinguishable: later ones are dashed, and their dots are smaller. */
const kDashes = ["none", "7 5", "2 4", "10 3 2 3", "4 2", "1 3"];
const seriesColors = () => (isDark() ? d3.schemeSet2 : d3.schemeDark2);

/** An empty chart with a title, and its drawing. */
function newChart(parent, title) {
  const figureBox = d3.select(parent).append("div");
  figureBox.append("h3").text(title);
  const svg = figureBox.append("svg").attr("viewBox", "0 0 " + kWidth + " " + kHeight).attr("role", "img").attr("aria-label", title);
  return { box: figureBox, svg };
}

function addAxes(svg, x, y, xTitle) {
  svg.append("g").attr("transform", "translate(0," + (kHeight - kMargin.bottom) + ")").call(x);
  svg.append("g").attr("transform", "translate(" + kMargin.left + ",0)").call(y);
  svg.append("text").attr("x", (kMargin.left + kWidth - kMargin.right) / 2).attr("y", kHeight - 2)
    .attr("text-anchor", "middle").text(xTitle);
}

/** Low, mean and high of a metric in each layer that has it; `kind` restricts it, null: all. */
function byLayer(metric, kind) {
  const layers = new Map(), sound = soundValue(data.metrics[metric]);
  const isTouched = data.rows.figures[metric].some((value) => value !== null && value !== sound);
  for (let row = 0; row < rowCount; ++row) {
    const value = figure(metric, row), layer = layerOf(row);
    if (isTouched && value === sound) continue;
    if (value === null || layer === null || (kind !== null && data.rows.kind[row] !== kind)) continue;
    const at = layers.get(layer) || { layer, low: value, high: value, sum: 0, count: 0 };
    at.low = Math.min(at.low, value);
    at.high = Math.max(at.high, value);
    at.sum += value;
    at.count += 1;
    layers.set(layer, at);
  }
  return [...layers.values()].sort((a, b) => a.layer - b.layer);
}

/** Figures of a single layer as text: one point is no curve. */
function layerText(parent, title, series) {
  const { box, svg } = newChart(parent, title);
  svg.remove();
  for (const s of series) {
    const [p] = s.points, text = (v) => figureText(data.metrics[s.metric], v);
    box.append("p").text("layer " + p.layer + (series.length > 1 ? ", " + s.label : "") + ": " + text(p.sum / p.count) +
      (p.low === p.high ? "" : " (" + text(p.low) + " to " + text(p.high) + ")"));
  }
}

function layerChart(parent, title, metric, series) {
  const { box, svg } = newChart(parent, title);
  const points = series.flatMap((s) => s.points), unit = data.metrics[metric];
  const x = d3.scaleLinear().domain(d3.extent(points, (p) => p.layer)).range([kMargin.left, kWidth - kMargin.right]);
  if (x.domain()[0] === x.domain()[1]) x.domain([x.domain()[0] - 1, x.domain()[1] + 1]);
  const low = d3.min(points, (p) => p.low), high = d3.max(points, (p) => p.high);
  const floor = unit.unit === "share" && low < 0.5 * high ? 0 : low;
  const y = d3.scaleLinear().domain(spanOf(unit, floor, high)).nice().range([kHeight - kMargin.bottom, kMargin.top]);
  const percent = unit.unit === "share" ? d3.format("~%") : unit.unit === "cosine" ? d3.format(".4~f") : d3.format(".4~g");
  const [first, last] = d3.extent(points, (p) => p.layer), whole = x.ticks(8).filter((t) => Number.isInteger(t) && t >= first && t <= last);
  addAxes(svg, d3.axisBottom(x).tickValues(whole).tickFormat(d3.format("d")), d3.axisLeft(y).ticks(5).tickFormat(percent), "layer");
  series.forEach((s, i) => {
    const color = seriesColors()[i % 8];
    svg.append("path").datum(s.points).attr("class", "band").attr("fill", color)
      .attr("d", d3.area().x((p) => x(p.layer)).y0((p) => y(p.low)).y1((p) => y(p.high)));
    svg.append("path").datum(s.points).attr("class", "series").attr("stroke", color).attr("stroke-dasharray", kDashes[i % kDashes.length])
      .attr("d", d3.line().x((p) => x(p.layer)).y((p) => y(p.sum / p.count)));
    if (s.points.length <= 256) svg.append("g").selectAll("circle").data(s.points).enter().append("circle").attr("fill", color)
      .attr("cx", (p) => x(p.layer)).attr("cy", (p) => y(p.sum / p.count)).attr("r", (s.points.length > 64 ? 1.2 : 2.5) * (1 + 0.5 * (series.length - 1 - i)));
  });
  const keys = box.append("div").attr("class", "keys");
  series.forEach((s, i) => {
    const key = keys.append("span");
    key.append("svg").attr("viewBox", "0 0 28 8").append("line").attr("x2", 28).attr("y1", 4).attr("y2", 4).attr("class", "series")
      .attr("stroke", seriesColors()[i % 8]).attr("stroke-dasharray", kDashes[i % kDashes.length]);
    key.append("span").text(s.label);
  });
  hoverLayers(svg, x, series);
}

/** Sums, and figures that matter only when large, are bars that start at the value where nothing is wrong. */
function layerBars(parent, title, metric) {
  const unit = data.metrics[metric], base = unit.unit === "ratio" ? 1 : 0, layers = new Map();
  for (let row = 0; row < rowCount; ++row) {
    const value = figure(metric, row), layer = layerOf(row);
    if (value === null || layer === null) continue;
    const before = layers.has(layer) ? layers.get(layer) : base;
    layers.set(layer, unit.cell === "sum" ? before + value : Math.max(before, value));
  }
  const high = d3.max(layers.values());
  if (high === base || layers.size < 2) {
    const { box, svg } = newChart(parent, title);
    svg.remove();
    box.append("p").text(high !== base ? "layer " + [...layers.keys()][0] + ": " + figureText(unit, high) : base === 1 ? "All linears that engines fuse have one scale." : "None in any layer.");
    return;
  }
  const { svg } = newChart(parent, title), extent = d3.extent(layers.keys());
  const x = d3.scaleLinear().domain([extent[0] - 0.5, extent[1] + 0.5]).range([kMargin.left, kWidth - kMargin.right]);
  const y = d3.scaleLinear().domain([base, high]).nice().range([kHeight - kMargin.bottom, kMargin.top]);
  const yTicks = y.ticks(5).filter((t) => unit.unit !== "count" || Number.isInteger(t));
  addAxes(svg, d3.axisBottom(x).tickValues(x.ticks(8).filter(Number.isInteger)).tickFormat(d3.format("d")),
          d3.axisLeft(y).tickValues(yTicks).tickFormat(d3.format(".4~g")), "layer");
  const width = Math.max(1, Math.min(22, 0.8 * (x(1) - x(0))));
  svg.append("g").selectAll("rect").data([...layers].filter((l) => l[1] > base)).enter().append("rect").attr("class", "bad-mark")
    .attr("x", (l) => x(l[0]) - width / 2).attr("width", width).attr("y", (l) => y(l[1])).attr("height", (l) => y(base) - y(l[1]))
    .each(function (l) {
      this.addEventListener("mousemove", (event) => showTip(event, "layer " + l[0], [[unit.label, figureText(unit, l[1])]]));
      this.addEventListener("mouseleave", hideTip);
    });
}

/** Shows the layer nearest to the pointer. */
function hoverLayers(svg, x, series) {
  svg.node().addEventListener("mousemove", (event) => {
    const bounds = svg.node().getBoundingClientRect();
    const layer = Math.round(x.invert(((event.clientX - bounds.left) * kWidth) / bounds.width));
    const lines = [];
    for (const s of series) {
      const point = s.points.find((p) => p.layer === layer), text = (v) => figureText(data.metrics[s.metric], v);
      if (point) lines.push([s.label, point.count > 1 ? text(point.sum / point.count) + " (" + text(point.low) + " to " + text(point.high) + ")" : text(point.low)]);
    }
    if (lines.length) showTip(event, "layer " + layer, lines);
  });
  svg.node().addEventListener("mouseleave", hideTip);
}

/** One chart a group; a metric alone has a line a kind where those are few. */
const kLayerCharts = [
  ["Error of outputs: chosen, by rounding", ["output_error", "rounded_error"]],
  ["Relative error", ["relative_error"]], ["Cosine", ["cosine"]], ["Values that differ", ["different_share"]],
  ["Zero codes", ["zero_share"]], ["Already 2:4, already 4:8-paired", ["share_2_4", "share_4_8_paired"]],
  ["Unequal global scales of fused linears", ["fused_ratio"]], ["Errors and warnings", ["findings"]],
  ["Not equal", ["differences"]],
];

function drawLayerCharts() {
  const parent = document.getElementById("layer-charts");
  parent.textContent = "";
  for (const [title, ids] of kLayerCharts) {
    const metrics = ids.map((id) => data.metrics.findIndex((m) => m.id === id)).filter((m) => m >= 0);
    let series = metrics.map((m) => ({ metric: m, label: data.metrics[m].label, points: byLayer(m, null) }));
    const drawnKinds = [...new Set(data.rows.kind)];
    if (metrics.length === 1 && drawnKinds.length <= 24) {
      const kinds = drawnKinds.map((k) => ({ metric: metrics[0], label: kindLabel[k], points: byLayer(metrics[0], k) }))
        .filter((s) => s.points.length);
      if (kinds.length > 1 && kinds.length <= 6) series = kinds;
    }
    // No model has more layers than a chart has room for; numbers in odd names can.
    series = series.filter((s) => s.points.length && s.points.length <= 2048);
    if (!series.length) continue;
    document.getElementById("layers").hidden = false;
    const { unit } = data.metrics[metrics[0]];
    if (unit === "ratio" || unit === "count") layerBars(parent, title, metrics[0]);
    else if (new Set(series.flatMap((s) => s.points.map((p) => p.layer))).size < 2) layerText(parent, title, series);
    else layerChart(parent, title, metrics[0], series);
  }
}

function bars(parent, title, items, xTitle, ticks) {
  const { svg } = newChart(parent, title), all = d3.sum(items, (d) => d.count) || 1;
  const x = d3.scaleBand().domain(items.map((d) => d.key)).range([kMargin.left, kWidth - kMargin.right]).padding(items.length > 40 ? 0 : 0.14);
  const y = d3.scaleLinear().domain([0, d3.max(items, (d) => d.count) / all || 1]).nice().range([kHeight - kMargin.bottom, kMargin.top]);
  const axis = d3.axisBottom(x).tickSizeOuter(0);
  // If there is little room, every other label.
  const some = (list) => (kWidth < 340 ? list.filter((_, i) => i % 2 === 0) : list);
  axis.tickValues(some(ticks ? ticks.map((t) => t.key) : items.map((d) => d.key)));
  if (ticks) axis.tickFormat((key) => ticks.find((t) => t.key === key).label);
  addAxes(svg, axis, d3.axisLeft(y).ticks(5).tickFormat(d3.format("~%")), xTitle);
  svg.append("g").selectAll("rect").data(items).enter().append("rect").attr("class", "bar-mark")
    .attr("x", (d) => x(d.key)).attr("width", x.bandwidth()).attr("y", (d) => y(d.count / all)).attr("height", (d) => y(0) - y(d.count / all))
    .each(function (d) {
      this.addEventListener("mousemove", (event) => showTip(event, d.title, [["count", thousands(d.count)], ["share", d3.format(".3~%")(d.count / all)]]));
      this.addEventListener("mouseleave", hideTip);
    });
}

function drawHistograms() {
  const parent = document.getElementById("number-charts"), chosen = +document.getElementById("kind").value;
  parent.textContent = "";
  const of = data.histograms.filter((h) => chosen < 0 || h.kind === chosen);
  const codes = d3.range(16).map((c) => d3.sum(of, (h) => h.codes[c])), scales = d3.range(256).map((b) => d3.sum(of, (h) => h.scales[b]));
  const text = (c) => (c === 8 ? "-0" : String(data.formats.e2m1[c]));
  const order = [15, 14, 13, 12, 11, 10, 9, 8, 0, 1, 2, 3, 4, 5, 6, 7];
  bars(parent, "E2M1 codes", order.map((c) => ({ key: text(c), count: codes[c], title: "code 0x" + c.toString(16).toUpperCase() + " = " + text(c) })), "value", null);
  const value = data.formats.e4m3, hex = (b) => "0x" + b.toString(16).toUpperCase().padStart(2, "0");
  const items = value.map((v, b) => ({ key: String(b), count: scales[b], title: "block scale " + hex(b) + " = " + compact(v) }));
  bars(parent, "E4M3 block scales", items, "value (each byte a bar)", d3.range(8, 127, 16).map((b) => ({ key: String(b), label: d3.format(value[b] < 1 ? ".2~g" : "d")(value[b]) })));
  const below = d3.select(parent.lastChild), nan = scales[127] + scales[255], negative = d3.sum(scales.slice(128, 255));
  below.append("p").classed("bad", nan + negative > 0).text(nan + negative > 0
    ? thousands(nan) + " NaN, " + thousands(negative) + " negative" : "No NaN, none negative; " + thousands(scales[126]) + " at 448, " + thousands(scales[0]) + " at 0");
}

/** A line a chart, over something else than layers. */
function drawCurves() {
  for (const curve of data.curves) {
    document.getElementById("curves").hidden = false;
    const { box, svg } = newChart(document.getElementById("curve-charts"), curve.title);
    if (curve.x.length < 2) {
      svg.remove();
      box.append("p").text(curve.x.map((x, i) => curve.x_title + " " + compact(x) + ": " + figureText(curve, curve.y[i])).join(""));
      continue;
    }
    const x = d3.scaleLinear().domain(d3.extent(curve.x)).range([kMargin.left, kWidth - kMargin.right]);
    const y = d3.scaleLinear().domain(spanOf(curve, d3.min(curve.y), d3.max(curve.y))).nice().range([kHeight - kMargin.bottom, kMargin.top]);
    addAxes(svg, d3.axisBottom(x).ticks(8), d3.axisLeft(y).ticks(5).tickFormat(curve.unit === "share" ? d3.format("~%") : d3.format(".4~g")), curve.x_title);
    svg.append("path").datum(curve.y).attr("class", "series").attr("stroke", seriesColors()[0])
      .attr("d", d3.line().x((_, i) => x(curve.x[i])).y((v) => y(v)));
    svg.append("g").selectAll("circle").data(curve.y).enter().append("circle").attr("fill", seriesColors()[0])
      .attr("cx", (_, i) => x(curve.x[i])).attr("cy", (v) => y(v)).attr("r", 2.5);
  }
}

function startCharts() {
  drawLayerCharts();
  drawCurves();
  if (!data.histograms.length) return;
  document.getElementById("numbers").hidden = false;
  const kinds = data.histograms.map((h) => h.kind).sort((a, b) => natural(kindLabel[a], kindLabel[b]));
  d3.select("#kind").on("change", drawHistograms).selectAll("option").data([-1, ...kinds]).enter().append("option")
    .attr("value", (k) => k).text((k) => (k < 0 ? "all modules" : kindLabel[k]));
  drawHistograms();
}
