// The heat map: kinds x layers, or the layers x experts of one kind. Drawn on a canvas, so that tens of
// thousands of cells stay quick.

const kMostRows = 60, kMostColumns = 4096;  // a canvas has bounds
const heat = { canvas: document.getElementById("heat"), metric: 0, kind: null, selected: null, grid: null };

/** Lays rows out: the labels left and below, and which rows fall into a cell. */
function makeGrid() {
  const lines = new Map(), columns = new Set();
  for (let row = 0; row < rowCount; ++row) {
    const kind = data.rows.kind[row], numbers = data.rows.numbers[row];
    if (!kindHasLayer[kind] || (heat.kind !== null && kind !== heat.kind)) continue;
    const line = heat.kind === null ? kind : numbers[0];
    const column = heat.kind === null ? numbers[0] : numbers.slice(1).join(".");
    if (!lines.has(line)) lines.set(line, new Map());
    const cells = lines.get(line);
    if (!cells.has(column)) cells.set(column, []);
    cells.get(column).push(row);
    columns.add(column);
  }
  let keys = [...lines.keys()];
  const left = (key) => (heat.kind === null ? kindLabel[key] : "layer " + key);
  // A checkpoint of odd names can have thousands of kinds; those of most modules are drawn.
  const size = (key) => d3.sum([...lines.get(key).values()], (rows) => rows.length);
  const hidden = Math.max(0, keys.length - (heat.kind === null ? kMostRows : 256));
  if (hidden) keys = keys.sort((a, b) => size(b) - size(a)).slice(0, keys.length - hidden);
  keys.sort((a, b) => natural(left(a), left(b)));
  const columnKeys = [...columns].sort((a, b) => natural(String(a), String(b))).slice(0, kMostColumns);
  const labels = keys.map(left);
  return { lines, keys, labels, columns: columnKeys, columnIndex: new Map(columnKeys.map((c, i) => [c, i])), hidden, hiddenColumns: columns.size - columnKeys.length };
}

/** Sizes in CSS pixels; columns grow with the room that there is. */
function measure(grid, context) {
  context.font = "12px " + getComputedStyle(document.body).fontFamily;
  const most = heat.canvas.parentElement.clientWidth < 500 ? 22 : 44;
  const shown = (text) => (text.length > most ? text.slice(0, most / 2 - 2) + "…" + text.slice(-most / 2) : text);
  const labels = grid.labels.map(shown);
  const left = Math.ceil((d3.max(labels, (l) => context.measureText(l).width) || 0) + 14);
  const room = heat.canvas.parentElement.clientWidth - left - 2;
  const width = Math.max(3, Math.min(34, Math.floor(room / Math.max(1, grid.columns.length))));
  const height = Math.max(4, Math.min(24, Math.floor(900 / Math.max(1, grid.keys.length))));
  return { left, width, height, labels, bottom: 34 };
}

function drawHeat() {
  const grid = (heat.grid = makeGrid()), context = heat.canvas.getContext("2d"), metric = data.metrics[heat.metric];
  const box = (heat.box = measure(grid, context)), gap = box.width > 8 && box.height > 8 ? 1 : 0;
  const width = box.left + grid.columns.length * box.width, height = grid.keys.length * box.height + box.bottom;
  const ratio = window.devicePixelRatio || 1;
  heat.canvas.width = width * ratio;
  heat.canvas.height = height * ratio;
  heat.canvas.style.width = width + "px";
  heat.canvas.style.height = height + "px";
  context.scale(ratio, ratio);
  context.font = "12px " + getComputedStyle(document.body).fontFamily;
  context.textBaseline = "middle";

  const cells = [];
  grid.keys.forEach((key, y) => grid.lines.get(key).forEach((rows, column) => {
    const x = grid.columnIndex.get(column);
    if (x !== undefined) cells.push({ y, x, value: cellValue(heat.metric, rows) });
  }));
  const values = touched(metric, cells.map((c) => c.value).filter((v) => Number.isFinite(v)));
  const [low, high] = values.length ? colorSpan(metric, d3.min(values), d3.max(values)) : [0, 1];
  const color = colorScale(metric, low, high);
  const empty = cssColor("empty"), right = soundValue(metric);
  for (const cell of cells) {
    // A row without a figure leaves its place empty. A good value has no colour of its own, so that the others stand out.
    if (cell.value === null) continue;
    // An infinite value has the colour of the worst.
    const value = Math.max(low, Math.min(high, cell.value));
    context.fillStyle = cell.value === right ? empty : color(Number.isFinite(cell.value) ? cell.value : value);
    context.fillRect(box.left + cell.x * box.width, cell.y * box.height, box.width - gap, box.height - gap);
  }
  context.fillStyle = cssColor("soft");
  context.textAlign = "right";
  if (box.height >= 10) box.labels.forEach((label, y) => context.fillText(label, box.left - 8, (y + 0.5) * box.height));
  context.textAlign = "center";
  const step = Math.max(1, Math.ceil(30 / box.width));
  const foot = grid.keys.length * box.height;
  grid.columns.forEach((column, x) => {
    if (x % step === 0) context.fillText(column === "" ? "" : column, box.left + (x + 0.5) * box.width, foot + 11);
  });
  context.fillText(heat.kind === null ? "layer" : "expert", box.left + (grid.columns.length * box.width) / 2, foot + 27);
  drawSelection(context);
  drawLegend(metric, low, high, color, values.length);
  d3.select("#map-title").text(heat.kind !== null ? "Layers × experts" : grid.keys.length > 1 ? "Layers × projections" : "Layers");
  heat.canvas.dataset.cells = cells.length;
  d3.select("#hidden").text(grid.hidden + grid.hiddenColumns === 0 ? ""
    : "Not drawn: " + thousands(grid.hidden) + " rows, " + thousands(grid.hiddenColumns) + " columns; the table below has all.");
}

function drawSelection(context) {
  if (!heat.selected) return;
  const y = heat.grid.keys.indexOf(heat.selected.key), x = heat.grid.columnIndex.get(heat.selected.column);
  if (y < 0 || x === undefined) return;
  const { left, width, height } = heat.box;
  context.lineWidth = 2;
  context.strokeStyle = cssColor("mark");
  context.strokeRect(left + x * width - 1, y * height - 1, width + 1, height + 1);
}

function drawLegend(metric, low, high, color, count) {
  const legend = d3.select("#legend");
  legend.selectAll("*").remove();
  if (!count) return legend.append("span").text("no figures");
  const stops = d3.range(0, 1.01, 0.1).map((t) =>
    color(metric.unit === "number" && low > 0 && high / low > 100 ? low * Math.pow(high / low, t) : low + (high - low) * t));
  legend.append("span").text(figureText(metric, low));
  legend.append("i").style("background", "linear-gradient(90deg," + stops.join(",") + ")");
  legend.append("span").text(figureText(metric, high));
}

/** The cell under the pointer; a key alone where it points at a label. */
function cellAt(event) {
  const bounds = heat.canvas.getBoundingClientRect(), { left, width, height } = heat.box;
  const x = event.clientX - bounds.left - left, y = Math.floor((event.clientY - bounds.top) / height);
  if (y < 0 || y >= heat.grid.keys.length) return null;
  const key = heat.grid.keys[y];
  if (x < 0) return { key };
  const column = heat.grid.columns[Math.floor(x / width)];
  const rows = heat.grid.lines.get(key).get(column);
  return rows ? { key, column, rows } : null;
}

function cellTitle(cell) {
  return cell.rows.length === 1 ? nameOf(cell.rows[0]) : kindLabel[cell.key] + ", layer " + cell.column;
}

function showCellTip(event) {
  const cell = cellAt(event);
  heat.canvas.style.cursor = cell ? "pointer" : "default";
  if (!cell || !cell.rows) return hideTip();
  const lines = [];
  data.metrics.forEach((metric, m) => {
    const values = cell.rows.map((row) => anyFigure(m, row)).filter((v) => v !== null);
    if (!values.length) return;
    const low = d3.min(values), high = d3.max(values), one = figureText(metric, low);
    lines.push([metric.label, metric.cell === "sum" ? figureText(metric, d3.sum(values))
      : low === high ? one : one + " to " + figureText(metric, high)]);
  });
  showTip(event, cellTitle(cell), cell.rows.length > 1 ? [["modules", thousands(cell.rows.length)], ...lines] : lines);
}

function clickHeat(event) {
  const cell = cellAt(event);
  if (!cell) return;
  if (!cell.rows) return heat.kind === null && openKind(cell.key);
  heat.selected = { key: cell.key, column: cell.column };
  drawHeat();
  selectModules(cell.rows, cellTitle(cell));
}

/** Shows the experts of one kind; null: back to all kinds. */
function openKind(kind) {
  if (kind !== null && data.kinds[kind].length < 3) return;
  heat.kind = kind;
  heat.selected = null;
  drawHeat();
  const crumbs = d3.select("#crumbs");
  crumbs.selectAll("*").remove();
  if (kind === null) return;
  crumbs.append("button").attr("type", "button").text("← all projections").on("click", () => openKind(null));
  crumbs.append("code").style("margin-left", "12px").text(kindLabel[kind]);
}

/** Marks the cell of a row and scrolls to it. */
function goToRow(row) {
  const kind = data.rows.kind[row];
  if (kindHasLayer[kind]) {
    if (heat.kind !== null) openKind(null);
    heat.selected = { key: kind, column: data.rows.numbers[row][0] };
    drawHeat();
  }
  selectModules([row], nameOf(row));
  document.getElementById(kindHasLayer[kind] ? "map" : "modules").scrollIntoView({ behavior: "smooth" });
}

function startHeat() {
  if (!rowCount || !data.metrics.length || !data.rows.kind.some((k) => kindHasLayer[k])) return;
  document.getElementById("map").hidden = false;
  d3.select("#metric").on("change", function () { heat.metric = +this.value; drawHeat(); })
    .selectAll("option").data(data.metrics).enter().append("option").attr("value", (m, i) => i).text((m) => m.label);
  if (data.kinds.some((parts) => parts.length > 2))
    d3.select("#hint").text("Hover for figures. Click a cell for its modules, a name on the left for its experts.");
  heat.canvas.addEventListener("mousemove", showCellTip);
  heat.canvas.addEventListener("mouseleave", hideTip);
  heat.canvas.addEventListener("click", clickHeat);
  drawHeat();
}
