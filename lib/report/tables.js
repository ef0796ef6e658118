// Findings and tables. Names come from untrusted files: they are text, never markup.

const kPage = 25, kPlacesPage = 8;

/** A table that shows a page at a time: `columns` of {label, cell(item), number, sort}, drawn by text. */
function pagedTable(parent, columns, items, note, size = kPage) {
  const box = d3.select(parent);
  box.selectAll("*").remove();
  let page = 0, order = null, down = false, sorted = items;
  const table = box.append("div").attr("class", "scroll").append("table"), head = table.append("thead").append("tr"), body = table.append("tbody");
  const pager = box.append("div").attr("class", "pager");
  head.selectAll("th").data(columns).enter().append("th").text((c) => c.label).classed("number", (c) => c.number)
    .classed("sortable", (c) => c.sort).attr("scope", "col").each(function (column) {
      if (!column.sort) return;
      this.addEventListener("click", () => {
        down = order === column ? !down : column.number;
        order = column;
        sorted = [...items].sort((a, b) => compareCells(column.sort(a), column.sort(b)) * (down ? -1 : 1));
        page = 0;
        draw();
      });
    });
  function draw() {
    body.selectAll("*").remove();
    for (const item of sorted.slice(page * size, (page + 1) * size)) {
      const line = body.append("tr");
      for (const column of columns) {
        const cell = line.append("td").classed("number", column.number).classed("name", column.name);
        const link = column.link && column.link(item);
        if (link) cell.append("button").attr("class", "link place").attr("type", "button").text(column.cell(item)).on("click", link);
        else cell.text(column.cell(item));
        const more = column.more && column.more(item);
        if (more) drawMore(cell, more);
      }
    }
    const pages = Math.ceil(items.length / size);
    pager.selectAll("*").remove();
    if (pages > 1) {
      const turn = (label, to) => pager.append("button").attr("type", "button").text(label)
        .property("disabled", to < 0 || to >= pages || to === page).on("click", () => { page = to; draw(); });
      turn("first", 0);
      turn("previous", page - 1);
      pager.append("span").text("page " + (page + 1) + " of " + thousands(pages));
      turn("next", page + 1);
      turn("last", pages - 1);
    }
    if (note) pager.append("span").text(note);
  }
  draw();
}

/** Lines that open below a cell: {title, lines}. */
function drawMore(cell, more) {
  const box = cell.append("details").attr("class", "more");
  box.append("summary").text(more.title);
  box.append("ul").selectAll("li").data(more.lines).enter().append("li").text((line) => line);
}

/** What follows from a finding; the page has the first lines of it. */
function consequencesOf(place) {
  if (!place[4]) return null;
  const shown = place[4].length, all = place[5];
  return { title: thousands(all) + (all === 1 ? " consequence" : " consequences") + (shown < all ? ", the first " + shown : ""), lines: place[4] };
}

/** Empty cells last, numbers by size, the rest as text. */
function compareCells(a, b) {
  if (a === null || b === null) return (a === null) - (b === null);
  return typeof a === "number" ? a - b : natural(a, b);
}

/** The row that a finding's name is about: the module, or the first below it. */
function rowOfName(name) {
  for (let at = name; at; at = at.includes(".") ? at.slice(0, at.lastIndexOf(".")) : "") {
    if (byName.has(at)) return byName.get(at);
    if (at !== name) break;
  }
  const prefix = name + ".";
  for (const [other, row] of byName) if (name && other.startsWith(prefix)) return row;
  return null;
}

function drawRule(parent, rule) {
  const box = parent.append("details").attr("id", "rule-" + rule.id), head = box.append("summary");
  head.append("span").attr("class", "badge " + rule.severity).text(rule.severity);
  head.append("b").text(rule.id);
  head.append("span").attr("class", "count").text("  " + thousands(rule.count) + (rule.count === 1 ? " place" : " places") +
    (rule.summary ? ": " + rule.summary : ""));
  if (rule.what) box.append("p").attr("class", "what").text([rule.what, rule.why].filter(Boolean).join(" "));
  const todo = box.append("p").attr("class", "todo");
  if (rule.todo) todo.append("span").text("To do: " + rule.todo + " ");
  if (rule.story.startsWith("https://")) todo.append("a").attr("href", rule.story).attr("rel", "noreferrer").text("reference");
  const places = box.append("div").attr("class", "places").node();
  const columns = [{ label: "where", name: true, cell: (p) => [p[0], p[1]].filter(Boolean).join(": "),
                     link: (p) => { const row = rowOfName(p[1]); return row === null ? null : () => goToRow(row); } },
                   { label: "what", cell: (p) => p[2], more: consequencesOf }];
  if (!rule.places.some((p) => p[0] || p[1])) columns.shift();
  const note = rule.count > rule.places.length ? "the first " + thousands(rule.places.length) + " of " + thousands(rule.count) + "; --json has all" : "";
  // Drawn when it is opened: a report can have thousands of places.
  let drawn = false;
  const open = () => { if (!drawn && box.node().open) { drawn = true; pagedTable(places, columns, rule.places, note, kPlacesPage); } };
  box.node().addEventListener("toggle", open);
  return { box, open };
}

function startFindings() {
  if (!data.rules.length) return;
  document.getElementById("findings").hidden = false;
  const severity = ["error", "warning", "note"], parent = d3.select("#rules");
  const rules = [...data.rules].sort((a, b) => severity.indexOf(a.severity) - severity.indexOf(b.severity));
  rules.forEach((rule, i) => {
    const { box, open } = drawRule(parent, rule);
    if (i < 2 && rule.severity !== "note") { box.property("open", true); open(); }
  });
}

const moduleColumns = () => [
  { label: "name", name: true, cell: nameOf, sort: nameOf, link: (row) => () => goToRow(row) },
  ...data.metrics.map((metric, m) => ({ label: metric.label.split(",")[0], number: true, cell: (row) => figureText(metric, anyFigure(m, row)), sort: (row) => anyFigure(m, row) })),
];

/** Shows these rows in the table of modules; null: all that pass the filter. */
function selectModules(rows, title) {
  const selection = d3.select("#selection"), filter = document.getElementById("filter").value;
  selection.selectAll("*").remove();
  if (rows !== null) {
    selection.append("code").text(title + " ");
    selection.append("button").attr("type", "button").text("show all").on("click", () => selectModules(null));
  }
  const shown = (rows || d3.range(rowCount)).filter((row) => !filter || nameOf(row).includes(filter));
  document.getElementById("module-table").dataset.rows = shown.length;
  pagedTable(document.getElementById("module-table"), moduleColumns(), shown, thousands(shown.length) + " of " + thousands(rowCount));
}

function startTables() {
  if (rowCount && data.metrics.length) {
    document.getElementById("modules").hidden = false;
    document.getElementById("filter").addEventListener("input", () => selectModules(null));
    selectModules(null);
  }
  for (const table of data.tables) {
    const section = d3.select("#tables").append("section");
    section.append("h2").text(table.title);
    const columns = table.columns.map((label, i) => {
      const number = label === "bytes" || label === "count";
      return { label, number, name: label === "name", cell: (row) => (label === "bytes" ? bytesText(+row[i]) : row[i]), sort: (row) => (number ? +row[i] : row[i]) };
    });
    pagedTable(section.append("div").node(), columns, table.rows, table.count > table.rows.length ? "the first " + thousands(table.rows.length) + " of " + thousands(table.count) : "");
  }
}
