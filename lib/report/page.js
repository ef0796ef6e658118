// Puts the page together and draws it again where the theme or the window changes.

function showTip(event, title, lines) {
  const tip = d3.select("#tip");
  tip.selectAll("*").remove();
  tip.append("b").text(title);
  const list = tip.append("dl");
  for (const [label, text] of lines) {
    list.append("dt").text(label);
    list.append("dd").text(text);
  }
  const node = tip.property("hidden", false).node(), margin = 14;
  const x = Math.min(event.clientX + margin, window.innerWidth - node.offsetWidth - margin);
  const below = event.clientY + margin + node.offsetHeight < window.innerHeight;
  node.style.left = Math.max(margin, x) + "px";
  node.style.top = Math.max(margin, below ? event.clientY + margin : event.clientY - node.offsetHeight - margin) + "px";
}

function hideTip() { document.getElementById("tip").hidden = true; }

function startHead() {
  document.title = "twofour " + data.command + ": " + data.subject;
  d3.select("#command").text(data.command);
  d3.select("#subject").text(data.subject);
  d3.select("#verdict").text(data.verdict).attr("class", data.failed ? "bad" : "good");
  d3.select("#version").text("twofour " + data.version);
  for (const fact of data.facts) {
    const box = d3.select("#facts").append("div");
    box.append("dt").text(fact.label);
    // A figure with a unit or an error is as large as a count.
    box.append("dd").classed("words", fact.text !== "" && !/^[-\d.]+( ± [\d.]+)?( %)?$/.test(fact.text)).text(fact.text || (fact.bytes ? bytesText(fact.number) : thousands(fact.number)));
  }
}

function applyTheme() { document.documentElement.dataset.theme = isDark() ? "dark" : "light"; }

function redraw() {
  applyTheme();
  if (!document.getElementById("map").hidden) drawHeat();
  drawLayerCharts();
  if (data.histograms.length) drawHistograms();
}

applyTheme();
startHead();
startFindings();
startHeat();
startCharts();
startTables();
document.getElementById("theme").addEventListener("click", () => { theme = isDark() ? "light" : "dark"; redraw(); });
darkQuery.addEventListener("change", redraw);
let resized = 0;
window.addEventListener("resize", () => {
  cancelAnimationFrame(resized);
  resized = requestAnimationFrame(() => { if (!document.getElementById("map").hidden) drawHeat(); });
});
document.documentElement.dataset.ready = "true";
