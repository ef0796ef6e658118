#pragma once
#include <doctest/doctest.h>
#include <stdio.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>

#include "formats/json.h"
#include "tests/support/faults/faults.h"
#include "tests/support/scratch.h"

/// Pages of reports, opened in a browser.

namespace twofour {

namespace fs = std::filesystem;

/// The output of a shell command.
inline std::string output_of(const std::string& command) {
  std::string text;
  FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  char buffer[65536];
  while (const size_t got = ::fread(buffer, 1, sizeof(buffer), pipe)) text.append(buffer, got);
  ::pclose(pipe);
  return text;
}

/// Name of the browser; empty where there is none, which ctest shows as skipped.
inline const std::string& browser() {
  static const std::string name = [] {
    std::string found =
        output_of("command -v chromium || command -v chromium-browser || command -v google-chrome");
    found = found.substr(0, found.find('\n'));
    if (found.empty()) ::printf("skipped: no chromium\n");
    return found;
  }();
  return name;
}

inline std::string file_text(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

/// The facts that a page states about itself.
struct Visit {
  Json seen;
  std::string console;  ///< what the browser's console told, errors and the rest
};

/// The object that a page left in its element "result"; null if it left none.
inline Json result_in(const std::string& dom) {
  constexpr std::string_view kOpen = "<pre id=\"result\">";
  const size_t begin = dom.find(kOpen);
  if (begin == dom.npos) return nullptr;
  const size_t end = dom.find("</pre>", begin);
  std::string text;
  for (size_t i = begin + kOpen.size(); i < end; ++i) {
    if (dom[i] == '%') {
      text += static_cast<char>(std::stoi(dom.substr(i + 1, 2), nullptr, 16));
      i += 2;
    } else {
      text += dom[i];
    }
  }
  return parse_json("page", text);
}

/// Opens a page as a user does and then runs `script` in it, which fills the object `seen`.
inline Visit visit(const Scratch& scratch, const fs::path& page, const std::string& script) {
  const fs::path copy = scratch / "visit.html", log = scratch / "visit.log";
  std::ofstream(copy, std::ios::binary)
      << file_text(page) << "<script>const seen = {};\n"
      << script
      << "\nconst result = document.createElement('pre');\nresult.id = 'result';\n"
         "result.textContent = "
         "encodeURIComponent(JSON.stringify(seen));\ndocument.body.append(result);</script>";
  const std::string dom =
      output_of(browser() +
                " --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
                "--disable-background-networking --disable-component-update --disable-dev-shm-usage "
                "--window-size=1280,1600 --enable-logging=stderr --user-data-dir='" +
                (scratch / "profile").string() + "' --dump-dom 'file://" + copy.string() + "' 2>'" +
                log.string() + "'");
  Visit v;
  std::istringstream lines(file_text(log));
  for (std::string line; std::getline(lines, line);) {
    if (line.find("CONSOLE") != line.npos) v.console += line + "\n";
  }
  v.seen = result_in(dom);
  return v;
}

/// Shows a page in frames of three widths, light and dark, and measures in each what leaves its place:
/// elements beyond the right edge that no box scrolls, and cells of sentences that are too narrow to read.
inline Json measure(const Scratch& scratch, const fs::path& page) {
  const fs::path framed = scratch / "framed.html", wrapper = scratch / "wrapper.html";
  std::ofstream(framed, std::ios::binary) << file_text(page) << R"(<script>
if (location.hash === '#dark') { theme = 'dark'; redraw(); }
for (const box of document.querySelectorAll('details')) box.open = true;
setTimeout(() => {
  const root = document.documentElement, edge = root.clientWidth, over = [], narrow = [];
  const name = (e) => e.tagName + '#' + e.id + '.' + e.className + ': ' + e.textContent.slice(0, 30);
  for (const e of document.querySelectorAll('body *')) {
    const box = e.getBoundingClientRect();
    if (box.width && box.right > edge + 1 && !e.closest('.scroll') && !e.closest('svg') && e.id !== 'tip') over.push(name(e));
  }
  for (const cell of document.querySelectorAll('.places td'))
    if (cell.textContent.length > 60 && cell.getBoundingClientRect().width < 200) narrow.push(name(cell));
  const text = document.querySelector('.charts svg text'), chart = text && text.closest('svg');
  parent.postMessage({ width: innerWidth, dark: root.dataset.theme === 'dark', over, narrow, scroll: root.scrollWidth - edge,
                       text: chart ? 11 * chart.getBoundingClientRect().width / chart.viewBox.baseVal.width : 11,
                       sections: document.querySelectorAll('section:not([hidden])').length }, '*');
}, 50);
</script>)";
  std::ofstream out(wrapper);
  out << "<!doctype html><pre id=\"result\">[]</pre><script>const all = [];\n"
         "window.addEventListener('message', (m) => { all.push(m.data); "
         "document.getElementById('result').textContent = "
         "encodeURIComponent(JSON.stringify(all)); });</script>\n";
  for (const int width : {390, 800, 1400}) {
    for (const char* look : {"light", "dark"})
      out << "<iframe src='framed.html#" << look << "' style='width:" << width
          << "px;height:900px;border:0'></iframe>\n";
  }
  out.close();
  const std::string dom = output_of(
      browser() +
      " --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync "
      "--disable-background-networking --disable-component-update --disable-dev-shm-usage "
      "--virtual-time-budget=20000 --window-size=1500,1000 --user-data-dir='" +
      (scratch / "profile").string() + "' --dump-dom 'file://" + wrapper.string() + "' 2>/dev/null");
  return result_in(dom);
}

inline void check_fits(const Scratch& scratch, const fs::path& page) {
  const Json frames = measure(scratch, page);
  INFO(page.string(), " ", frames.dump());
  REQUIRE(frames.is_array());
  CHECK(frames.size() == 6);
  size_t dark = 0;
  for (const Json& f : frames) {
    dark += f["dark"] == true;
    CHECK(f["scroll"] == 0);
    CHECK(f["over"].empty());
    CHECK(f["narrow"].empty());
    CHECK(f["text"].get<double>() > 9);
    CHECK(f["sections"].get<int>() > 0);
  }
  CHECK(dark == 3);
}

/// The contents that every report must show.
inline const std::string kLook = R"(
seen.ready = document.documentElement.dataset.ready === 'true';
seen.title = document.title;
seen.verdict = document.getElementById('verdict').className;
seen.requests = performance.getEntriesByType('resource').length;
seen.cells = Number(heat.canvas.dataset.cells || 0);
seen.colors = () => {
  const { width, height } = heat.canvas, set = new Set();
  const copy = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  Object.assign(copy.canvas, { width, height });
  copy.drawImage(heat.canvas, 0, 0);
  const bytes = copy.getImageData(0, 0, width, height).data;
  for (let i = 0; i < bytes.length; i += 4) if (bytes[i + 3] === 255) set.add(bytes[i] + ',' + bytes[i + 1] + ',' + bytes[i + 2]);
  return set.size;
};
seen.bars = document.querySelectorAll('#number-charts rect.bar-mark').length;
seen.curves = document.querySelectorAll('#layer-charts path.series').length;
seen.rules = [...document.querySelectorAll('#rules details')].map((d) => d.id);
seen.images = document.images.length;
const over = (x, y) => {
  const box = heat.canvas.getBoundingClientRect();
  heat.canvas.dispatchEvent(new MouseEvent('mousemove', { clientX: box.left + heat.box.left + (x + 0.5) * heat.box.width,
                                                          clientY: box.top + (y + 0.5) * heat.box.height, bubbles: true }));
  return document.getElementById('tip').textContent;
};
)";

inline fs::path write_faulty(const Scratch& scratch) {
  Save save = sound_checkpoint();
  std::mt19937 random(7);
  for (const Fault& f : content_faults()) {
    const std::string rule = f.rule;
    if (rule == "unequal-global-scales" || rule == "bad-block-scale" || rule == "zero-scale")
      f.spoil(save, random);
  }
  write_save(save, scratch / "faulty");
  return scratch / "faulty";
}

}  // namespace twofour
