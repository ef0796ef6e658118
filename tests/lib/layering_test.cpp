#include <doctest/doctest.h>

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <set>
#include <sstream>
#include <string>
#include <vector>

namespace layering_test {

namespace {

namespace fs = std::filesystem;

/// Files by their path from the root ("lib/write/plan/plan.h") with their text.
using Tree = std::map<std::string, std::string>;
using Findings = std::vector<std::string>;

/// Which areas a file of an area may include: tools -> lib -> kernels -> formats.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"formats", {"formats"}},
    {"kernels", {"kernels", "formats"}},
    {"lib", {"lib", "kernels", "formats"}},
    {"tools", {"tools", "lib", "kernels", "formats"}},
};

/// Code that nvcc in C++20 mode rejects, or that has no place in a kernel.
const std::set<std::string> kNotInKernels = {"fmt", "xtensor", "CLI", "doctest"};

/// Areas whose folders pass data in the order of tables in README.md.
const std::vector<std::string> kOrderedAreas = {"formats", "kernels", "lib"};

constexpr size_t kMostSources = 25, kMostWings = 14;

bool is_source(const std::string& name) {
  static const std::set<std::string> kExtensions = {".h", ".cpp", ".cu", ".cuh"};
  return kExtensions.contains(fs::path(name).extension().string());
}

bool is_cuda(const std::string& name) { return name.ends_with(".cu") || name.ends_with(".cuh"); }

Tree read_project() {
  Tree tree;
  for (const auto& [area, allowed] : kMayInclude) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(TWOFOUR_SOURCE_DIR) / area)) {
      const std::string name = fs::relative(entry.path(), TWOFOUR_SOURCE_DIR).string();
      if (!is_source(name) && entry.path().filename() != "README.md") continue;
      std::ostringstream text;
      text << std::ifstream(entry.path()).rdbuf();
      tree[name] = text.str();
    }
  }
  return tree;
}

const Tree& project() {
  static const Tree tree = read_project();
  return tree;
}

std::string area_of(const std::string& path) { return path.substr(0, path.find('/')); }

/// The folder inside the area: "plan" of "lib/write/plan/plan.h"; empty for "kernels/no_cuda.cpp".
std::string folder_of(const std::string& path) {
  const size_t first = path.find('/'), last = path.rfind('/');
  return first == last ? "" : path.substr(first + 1, last - first - 1);
}

/// Preprocessor lines, without the '#' and the blanks around it.
std::vector<std::string> directives(const std::string& text) {
  std::vector<std::string> found;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    const size_t hash = line.find_first_not_of(" \t");
    if (hash == std::string::npos || line[hash] != '#') continue;
    const size_t word = line.find_first_not_of(" \t", hash + 1);
    if (word != std::string::npos) found.push_back(line.substr(word));
  }
  return found;
}

/// First folder of an #include: "lib" of `"lib/write/plan/plan.h"`, "fmt" of `<fmt/format.h>`; empty for
/// others.
std::string first_folder(const std::string& directive) {
  if (!directive.starts_with("include")) return "";
  const size_t open = directive.find_first_of("\"<"), slash = directive.find('/', open);
  return open == std::string::npos || slash == std::string::npos
             ? ""
             : directive.substr(open + 1, slash - open - 1);
}

/// Path of an #include in quotes; nothing for other directives.
std::optional<std::string> quoted(const std::string& directive) {
  const size_t open = directive.find('"');
  if (!directive.starts_with("include") || open == std::string::npos) return std::nullopt;
  return directive.substr(open + 1, directive.find('"', open + 1) - open - 1);
}

bool mentions_cuda(std::string directive) {
  for (char& c : directive) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return directive.find("CUDA") != std::string::npos || directive.find("NVCC") != std::string::npos;
}

/// First cells of the table that begins with "| HEAD |" in a folder's README.md: `plan` or [`plan`](...).
std::vector<std::string> table_of(const Tree& tree, const std::string& folder, const std::string& head) {
  std::vector<std::string> cells;
  const auto readme = tree.find(folder + "/README.md");
  std::istringstream lines(readme == tree.end() ? "" : readme->second);
  bool in_table = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("| " + head + " |")) in_table = true;
    if (!line.starts_with("|")) in_table = false;
    const size_t open = line.find('`');
    if (!in_table || (open != 2 && open != 3)) continue;
    cells.push_back(line.substr(open + 1, line.find('`', open + 1) - open - 1));
  }
  return cells;
}

/// The folders of an area in the order of its README.md. A table of wings says the order of these, the
/// README.md of each that of its folders; sources of the wing itself come last.
std::vector<std::string> folder_table(const Tree& tree, const std::string& area) {
  std::vector<std::string> folders = table_of(tree, area, "folder");
  for (const std::string& wing : table_of(tree, area, "wing")) {
    const std::vector<std::string> inner = table_of(tree, area + "/" + wing, "folder");
    for (const std::string& folder : inner) folders.push_back(wing + "/" + folder);
    const std::string own = area + "/" + wing;
    const bool has_sources = std::any_of(tree.begin(), tree.end(), [&](const auto& file) {
      return is_source(file.first) && fs::path(file.first).parent_path() == own;
    });
    if (has_sources || inner.empty()) folders.push_back(wing);
  }
  return folders;
}

/// Includes that name another area than kMayInclude allows, or no path from the root.
Findings includes_of_wrong_areas(const Tree& tree) {
  Findings found;
  for (const auto& [name, text] : tree) {
    if (!is_source(name)) continue;
    for (const std::string& directive : directives(text)) {
      const std::string area = first_folder(directive);
      const bool ours = kMayInclude.contains(area);
      if ((ours && !kMayInclude.at(area_of(name)).contains(area)) || area == "tests" ||
          (quoted(directive) && !ours))
        found.push_back(name + ": #" + directive);
    }
  }
  return found;
}

/// Includes of a folder that is below the file's own in the area's table.
Findings includes_that_run_up(const Tree& tree) {
  Findings found;
  for (const std::string& area : kOrderedAreas) {
    const std::vector<std::string> order = folder_table(tree, area);
    const auto place = [&](const std::string& path) -> ptrdiff_t {
      const std::string folder = folder_of(path);
      // Files outside folders come first in formats, elsewhere last.
      if (folder.empty() && area == "formats") return -1;
      if (folder.empty()) return static_cast<ptrdiff_t>(order.size());
      return std::find(order.begin(), order.end(), folder) - order.begin();
    };
    for (const auto& [name, text] : tree) {
      if (!is_source(name) || area_of(name) != area) continue;
      for (const std::string& directive : directives(text)) {
        const std::optional<std::string> path = quoted(directive);
        if (path && area_of(*path) == area && place(*path) > place(name))
          found.push_back(name + ": #" + directive);
      }
    }
  }
  return found;
}

/// Folders without a line in their area's table, lines without a folder, folders that are named twice.
Findings tables_that_disagree(const Tree& tree) {
  Findings found;
  for (const std::string& area : kOrderedAreas) {
    std::set<std::string> folders, lines;
    for (const auto& [name, text] : tree)
      if (is_source(name) && area_of(name) == area && !folder_of(name).empty())
        folders.insert(folder_of(name));
    for (const std::string& line : folder_table(tree, area)) {
      if (!lines.insert(line).second) found.push_back(area + "/README.md: two lines for " + line);
      if (!folders.contains(line)) found.push_back(area + "/README.md: no folder " + line);
    }
    for (const std::string& folder : folders)
      if (!lines.contains(folder)) found.push_back(area + "/README.md: no line for " + folder);
  }
  return found;
}

/// Wings of lib beyond the number that a map can show.
Findings too_many_wings(const Tree& tree) {
  std::set<std::string> wings;
  for (const auto& [name, text] : tree)
    if (is_source(name) && area_of(name) == "lib")
      wings.insert(folder_of(name).substr(0, folder_of(name).find('/')));
  return wings.size() > kMostWings ? Findings{"lib: " + std::to_string(wings.size()) + " wings"} : Findings{};
}

/// Folders with too many sources, and sources outside the folders that they belong into.
Findings crowded_or_loose(const Tree& tree) {
  Findings found;
  std::map<std::string, size_t> counts;
  for (const auto& [name, text] : tree) {
    if (!is_source(name)) continue;
    ++counts[fs::path(name).parent_path().string()];
    const std::string file = fs::path(name).filename().string();
    const bool dispatches = file == "no_cuda.cpp" || file.starts_with("dispatch_");
    if (folder_of(name).empty() && (area_of(name) == "lib" || (area_of(name) == "kernels" && !dispatches)))
      found.push_back(name + ": outside the folders of its area");
  }
  for (const auto& [folder, count] : counts)
    if (count > kMostSources) found.push_back(folder + ": " + std::to_string(count) + " sources");
  return found;
}

/// Sources for nvcc that include what it rejects, be it by way of our headers.
Findings rejected_by_nvcc(const Tree& tree) {
  Findings found;
  for (const auto& [source, source_text] : tree) {
    if (!is_cuda(source)) continue;
    std::vector<std::string> open = {source};
    std::set<std::string> seen;
    while (!open.empty()) {
      const std::string name = open.back();
      open.pop_back();
      if (!seen.insert(name).second || !tree.contains(name)) continue;
      for (const std::string& directive : directives(tree.at(name))) {
        if (kNotInKernels.contains(first_folder(directive)))
          found.push_back(source + " by way of " + name + ": #" + directive);
        if (const auto path = quoted(directive)) open.push_back(*path);
      }
    }
  }
  return found;
}

/// Includes that few files may have: CLI11 and xtensor take seconds to compile, and the FP8 route is no part
/// of the product.
Findings reserved_includes(const Tree& tree) {
  Findings found;
  for (const auto& [name, text] : tree) {
    const bool may_measure = name.starts_with("tools/bench/");
    const bool has_arrays = name.starts_with("lib/prove/expected/") || name.starts_with("lib/look/inspect/");
    for (const std::string& directive : directives(text)) {
      const bool parser = first_folder(directive) == "CLI" && !name.starts_with("tools/cli/argument");
      const bool rival = quoted(directive) == "tools/bench/fp8/fp8_multiply.h" && !may_measure;
      const bool arrays = first_folder(directive) == "xtensor" && !(has_arrays && name.ends_with(".cpp"));
      if (parser || rival || arrays) found.push_back(name + ": #" + directive);
    }
  }
  return found;
}

/// Headers that lib/prove/validate and lib/prove/expected must not share with convert, or one mistake could
/// be in an artifact and in its proof. Nothing of lib/write/transform, by way of our headers neither; of
/// kernels no include of what quantizes, casts and prunes.
const std::string kTransform = "lib/write/transform/";
const std::vector<std::string> kEncoding = {"kernels/numbers/casts", "kernels/numbers/quantize",
                                            "kernels/pack/prune"};
/// Those that the proof may not reach through other headers either.
const std::vector<std::string> kQuantizing = {"kernels/numbers/casts", "kernels/numbers/quantize"};

Findings shared_with_the_proof(const Tree& tree) {
  Findings found;
  for (const auto& [source, source_text] : tree) {
    if (!source.starts_with("lib/prove/validate/") && !source.starts_with("lib/prove/expected/")) continue;
    for (const std::string& directive : directives(source_text)) {
      const auto path = quoted(directive);
      const auto begins = [&](const std::string& prefix) { return path && path->starts_with(prefix); };
      if (std::any_of(kEncoding.begin(), kEncoding.end(), begins))
        found.push_back(source + ": #" + directive);
    }
    std::vector<std::string> open = {source};
    std::set<std::string> seen;
    while (!open.empty()) {
      const std::string name = open.back();
      open.pop_back();
      if (!seen.insert(name).second || !tree.contains(name)) continue;
      for (const std::string& directive : directives(tree.at(name))) {
        const auto path = quoted(directive);
        const auto begins = [&](const std::string& prefix) { return path && path->starts_with(prefix); };
        const bool quantizes = name != source && std::any_of(kQuantizing.begin(), kQuantizing.end(), begins);
        if (begins(kTransform) || quantizes)
          found.push_back(source + " by way of " + name + ": #" + directive);
        if (path) open.push_back(*path);
      }
    }
  }
  return found;
}

/// The beginnings of what is declared or defined at the left margin, outside of anonymous namespaces: each up
/// to its first '{' or ';', which ends it.
std::vector<std::string> outlines(const std::string& text) {
  std::vector<std::string> found;
  std::string open;
  bool is_hidden = false;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line == "namespace {") is_hidden = true;
    if (line == "}  // namespace") is_hidden = false;
    const bool begins =
        !line.empty() && (std::isalpha(static_cast<unsigned char>(line[0])) || line[0] == '_');
    if (is_hidden || (open.empty() && !begins)) continue;
    open += line + " ";
    const size_t end = open.find_first_of("{;");
    if (end == std::string::npos) continue;
    found.push_back(open.substr(0, end + 1));
    open.clear();
  }
  return found;
}

/// The last name of a text, with the classes before it: "Plan::parts_of" of "const X& Plan::parts_of".
std::string last_name(const std::string& text) {
  size_t begin = text.size();
  const auto belongs = [](char c) {
    return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || c == ':' || c == '~';
  };
  while (begin > 0 && belongs(text[begin - 1])) --begin;
  return text.substr(begin);
}

/// The class or function that an outline names: "Plan", "make_plan"; of a member "Plan::parts_of". Empty:
/// none.
std::string named_by(const std::string& outline) {
  for (const std::string word : {"namespace ", "using ", "typedef ", "enum ", "extern ", "static_assert"})
    if (outline.starts_with(word)) return "";
  const size_t parenthesis = outline.find('(');
  if (parenthesis != std::string::npos) return last_name(outline.substr(0, parenthesis));
  const size_t word = outline.starts_with("class ") ? 6 : outline.starts_with("struct ") ? 7 : 0;
  if (word == 0 || outline.back() == ';') return "";
  return outline.substr(word, outline.find_first_of(" :{", word) - word);
}

/// Classes and functions of lib that a header of one folder declares and sources of others define, with those
/// folders: what a transformation declares, makes and proves lives in three rooms (lib/README.md).
using Rooms = std::map<std::string, std::set<std::string>>;

Rooms defined_elsewhere(const Tree& tree) {
  Rooms declared, elsewhere;
  for (const auto& [name, text] : tree) {
    if (area_of(name) != "lib" || !name.ends_with(".h")) continue;
    for (const std::string& outline : outlines(text))
      if (const std::string what = named_by(outline); !what.empty()) declared[what].insert(folder_of(name));
  }
  for (const auto& [name, text] : tree) {
    if (area_of(name) != "lib" || !name.ends_with(".cpp")) continue;
    for (const std::string& outline : outlines(text)) {
      if (outline.back() == ';' || outline.find('(') == std::string::npos) continue;
      const std::string what = named_by(outline), owner = what.substr(0, what.find("::"));
      const auto at = declared.find(owner);
      if (at != declared.end() && !at->second.contains(folder_of(name)))
        elsewhere[owner].insert(folder_of(name));
    }
  }
  return elsewhere;
}

/// All that may be: transformations and rewrites of tensors, the table of methods, and the C interface.
Rooms allowed_elsewhere() {
  Rooms allowed = {{"methods", {"write/methods"}},
                   {"QuantizedGroup", {"write/transform", "prove/validate/quantized"}}};
  for (const char* rewritten : {"ConstantScalar", "ConvertedScalars", "CopiedTensor", "DequantizedWeights",
                                "GatheredRows", "KeptTensor", "LayoutMatrix", "LinearRewrite",
                                "ModuleRewrite", "PrunedCodes", "StackedExperts", "WidenedWeights"})
    allowed[rewritten] = {"write/transform", "prove/validate"};
  for (const char* function :
       {"append",          "begin_sequence",       "choose_formats", "close_checkpoint",
        "close_model",     "close_tokenizer",      "decode",         "encode",
        "end_sequence",    "find_token",           "get_model_info", "list",
        "open_checkpoint", "open_checkpoint_with", "open_model",     "open_model_on",
        "open_model_with", "open_tokenizer",       "read_bytes",     "read_values",
        "token",           "vocabulary_size"})
    allowed[std::string("twofour_") + function] = {"run/c_api"};
  return allowed;
}

/// Conditions on the compiler or on CUDA outside the one header that may have them.
Findings conditions_on_cuda(const Tree& tree) {
  Findings found;
  for (const auto& [name, text] : tree) {
    if (!is_source(name) || name == "formats/hd.h") continue;
    for (const std::string& directive : directives(text))
      if ((directive.starts_with("if") || directive.starts_with("elif")) && mentions_cuda(directive))
        found.push_back(name + ": #" + directive);
  }
  return found;
}

void check_none(const Findings& findings) {
  for (const std::string& finding : findings) FAIL_CHECK(finding);
}

/// A small tree that breaks no rule: lib with the folders base/io and write/plan, one kernel, one command.
Tree sound_tree() {
  return {
      {"formats/hd.h", "#if defined(__CUDACC__)\n#endif\n"},
      {"kernels/README.md", "| folder | its one reason |\n| --- | --- |\n| `device` | the machine |\n"},
      {"kernels/device/isa.h", "#include \"formats/hd.h\"\n"},
      {"kernels/dispatch_x86.cpp", "#include \"kernels/device/isa.h\"\n"},
      {"lib/README.md",
       "Before.\n\n| wing | its one reason |\n| --- | --- |\n| [`base`](base/README.md) | files |\n"
       "| `write` | bytes |\n"},
      {"lib/base/README.md", "| folder | its one reason |\n| --- | --- |\n| `io` | files |\n"},
      {"lib/write/README.md", "| folder | its one reason |\n| --- | --- |\n| `plan` | the plan |\n"},
      {"lib/base/io/file.h", "#include <string>\n"},
      {"lib/write/plan/plan.h", "#include \"kernels/device/isa.h\"\n#include \"lib/base/io/file.h\"\n"},
      {"tools/main.cpp", "#include \"lib/write/plan/plan.h\"\n"},
  };
}

/// The findings of a rule once `name` has `text`; an empty text removes the file.
Findings after(Findings (*rule)(const Tree&), const std::string& name, const std::string& text) {
  Tree tree = sound_tree();
  if (text.empty()) {
    tree.erase(name);
  } else {
    tree[name] = text;
  }
  return rule(tree);
}

}  // namespace

TEST_CASE("tools include lib, lib includes kernels, kernels include formats, and never the reverse") {
  std::set<std::string> areas;
  for (const auto& [name, text] : project())
    if (is_source(name)) areas.insert(area_of(name));
  CHECK(areas.size() == kMayInclude.size());
  check_none(includes_of_wrong_areas(project()));

  CHECK(includes_of_wrong_areas(sound_tree()).empty());
  CHECK(after(includes_of_wrong_areas, "kernels/device/isa.h", "#include \"lib/base/io/file.h\"\n") ==
        Findings{"kernels/device/isa.h: #include \"lib/base/io/file.h\""});
  CHECK(after(includes_of_wrong_areas, "lib/base/io/file.h", "#include <tests/support/scratch.h>\n").size() ==
        1);
  CHECK(after(includes_of_wrong_areas, "lib/base/io/file.h", "  #  include \"hash.h\"\n").size() == 1);
}

TEST_CASE("inside an area an include names its own folder or one above it in the tables of README.md") {
  for (const std::string& area : kOrderedAreas) CHECK(folder_table(project(), area).size() >= 2);
  check_none(includes_that_run_up(project()));

  CHECK(includes_that_run_up(sound_tree()).empty());
  CHECK(after(includes_that_run_up, "lib/base/io/file.h", "#include \"lib/write/plan/plan.h\"\n") ==
        Findings{"lib/base/io/file.h: #include \"lib/write/plan/plan.h\""});
  CHECK(after(includes_that_run_up, "kernels/device/isa.h", "#include \"kernels/dispatch.h\"\n").size() == 1);
  CHECK(after(includes_that_run_up, "formats/hd.h", "#include \"formats/layouts/layouts.h\"\n").size() == 1);
  CHECK(after(includes_that_run_up, "lib/README.md",
              "| wing | |\n| --- | --- |\n| `write` | |\n| `base` | |\n") ==
        Findings{"lib/write/plan/plan.h: #include \"lib/base/io/file.h\""});
  // The order of folders in a wing, and the wing's own sources behind them
  Tree tree = sound_tree();
  tree["lib/base/README.md"] = "| folder | |\n| --- | --- |\n| `names` | |\n| `io` | |\n";
  tree["lib/base/names/names.h"] = "#include \"lib/base/io/file.h\"\n";
  CHECK(includes_that_run_up(tree) == Findings{"lib/base/names/names.h: #include \"lib/base/io/file.h\""});
  tree["lib/base/names/names.h"] = "\n";
  tree["lib/base/base.h"] = "#include \"lib/base/io/file.h\"\n";
  CHECK(includes_that_run_up(tree).empty());
  tree["lib/base/io/file.h"] = "#include \"lib/base/base.h\"\n";
  CHECK(includes_that_run_up(tree) == Findings{"lib/base/io/file.h: #include \"lib/base/base.h\""});
}

TEST_CASE("every folder of an area has a line in README.md's table, and every line a folder") {
  check_none(tables_that_disagree(project()));

  CHECK(tables_that_disagree(sound_tree()).empty());
  CHECK(after(tables_that_disagree, "lib/lint/lint.h", "#pragma once\n") ==
        Findings{"lib/README.md: no line for lint"});
  CHECK(after(tables_that_disagree, "lib/base/names/names.h", "#pragma once\n") ==
        Findings{"lib/README.md: no line for base/names"});
  CHECK(after(tables_that_disagree, "lib/base/io/file.h", "") ==
        Findings{"lib/README.md: no folder base/io"});
  CHECK(after(tables_that_disagree, "kernels/README.md", "") ==
        Findings{"kernels/README.md: no line for device"});
}

TEST_CASE("no folder has over 25 sources; none is loose in lib, in kernels only the dispatchers") {
  check_none(crowded_or_loose(project()));
  check_none(too_many_wings(project()));

  CHECK(crowded_or_loose(sound_tree()).empty());
  CHECK(after(crowded_or_loose, "lib/plan.h", "#pragma once\n") ==
        Findings{"lib/plan.h: outside the folders of its area"});
  CHECK(after(crowded_or_loose, "kernels/prune.h", "#pragma once\n").size() == 1);
  Tree tree = sound_tree();
  for (int i = 2; i <= 25; ++i) tree["lib/base/io/file" + std::to_string(i) + ".h"] = "#pragma once\n";
  CHECK(crowded_or_loose(tree).empty());
  tree["lib/base/io/file26.cpp"] = "\n";
  CHECK(crowded_or_loose(tree) == Findings{"lib/base/io: 26 sources"});
  for (int i = 3; i <= 14; ++i) tree["lib/wing" + std::to_string(i) + "/file.h"] = "#pragma once\n";
  CHECK(too_many_wings(tree).empty());
  tree["lib/wing15/file.h"] = "#pragma once\n";
  CHECK(too_many_wings(tree) == Findings{"lib: 15 wings"});
}

TEST_CASE("no CUDA source includes fmt, xtensor, CLI11 or doctest, not through our headers either") {
  check_none(rejected_by_nvcc(project()));

  Tree tree = sound_tree();
  tree["kernels/device/device_cuda.cu"] = "#include \"kernels/device/isa.h\"\n";
  CHECK(rejected_by_nvcc(tree).empty());
  tree["kernels/device/isa.h"] = "#include <fmt/format.h>\n";
  CHECK(rejected_by_nvcc(tree) ==
        Findings{"kernels/device/device_cuda.cu by way of kernels/device/isa.h: #include <fmt/format.h>"});
}

TEST_CASE(
    "lib/prove/validate includes nothing of lib/write/transform, nor of the kernels that quantize, cast and "
    "prune") {
  CHECK(std::any_of(project().begin(), project().end(),
                    [](const auto& file) { return file.first.starts_with(kTransform); }));
  for (const std::string& prefix : kEncoding) {
    CAPTURE(prefix);
    CHECK(project().contains(prefix + ".h"));  // the rule names what there is
  }
  check_none(shared_with_the_proof(project()));

  CHECK(shared_with_the_proof(sound_tree()).empty());
  const std::string check = "lib/prove/validate/check.cpp";
  CHECK(after(shared_with_the_proof, check, "#include \"lib/write/transform/encoder.h\"\n") ==
        Findings{check + " by way of " + check + ": #include \"lib/write/transform/encoder.h\""});
  CHECK(after(shared_with_the_proof, check, "#include \"kernels/numbers/quantize_ops.h\"\n") ==
        Findings{check + ": #include \"kernels/numbers/quantize_ops.h\""});
  Tree tree = sound_tree();
  tree[check] = "#include \"lib/base/io/file.h\"\n";
  tree["lib/base/io/file.h"] = "#include \"lib/write/transform/encoder.h\"\n";
  CHECK(shared_with_the_proof(tree) ==
        Findings{check + " by way of lib/base/io/file.h: #include \"lib/write/transform/encoder.h\""});
  tree["lib/base/io/file.h"] = "#include \"kernels/device/isa.h\"\n";
  tree["kernels/device/isa.h"] = "#include \"kernels/numbers/quantize.h\"\n";
  CHECK(shared_with_the_proof(tree) ==
        Findings{check + " by way of kernels/device/isa.h: #include \"kernels/numbers/quantize.h\""});
}

TEST_CASE(
    "CLI11 has two files, xtensor the .cpp files of two folders, the FP8 multiply is for twofour-bench") {
  CHECK(project().contains("tools/cli/arguments.cpp"));
  CHECK(project().contains("tools/bench/fp8/fp8_multiply.h"));
  check_none(reserved_includes(project()));

  CHECK(reserved_includes(sound_tree()).empty());
  CHECK(after(reserved_includes, "tools/main.cpp", "#include <CLI/CLI.hpp>\n") ==
        Findings{"tools/main.cpp: #include <CLI/CLI.hpp>"});
  CHECK(after(reserved_includes, "lib/write/plan/plan.h", "#include \"tools/bench/fp8/fp8_multiply.h\"\n") ==
        Findings{"lib/write/plan/plan.h: #include \"tools/bench/fp8/fp8_multiply.h\""});
  CHECK(after(reserved_includes, "lib/prove/expected/rows.cpp", "#include <xtensor/xview.hpp>\n").empty());
  for (const std::string name :
       {"lib/prove/expected/rows.h", "lib/write/plan/plan.cpp", "lib/look/inspect/inspect.h"})
    CHECK(after(reserved_includes, name, "#include <xtensor/xview.hpp>\n") ==
          Findings{name + ": #include <xtensor/xview.hpp>"});
}

TEST_CASE("what one folder of lib declares it defines, but for a list: transformations have three rooms") {
  const Rooms found = defined_elsewhere(project()), allowed = allowed_elsewhere();
  for (const auto& [name, folders] : found) {
    CAPTURE(name);
    CHECK(allowed.contains(name));
    if (allowed.contains(name)) CHECK(allowed.at(name) == folders);
  }
  for (const auto& [name, folders] : allowed) {
    CAPTURE(name);
    CHECK(found.contains(name));  // the list names what there is
  }

  Tree tree = sound_tree();
  CHECK(defined_elsewhere(tree).empty());
  tree["lib/base/io/file.h"] = "class File {\n  void read();\n};\nint open_file(int);\nstruct Known;\n";
  tree["lib/base/io/file.cpp"] = "void File::read() {}\nint open_file(int) { return 0; }\n";
  CHECK(defined_elsewhere(tree).empty());
  tree["lib/write/plan/plan.cpp"] =
      "void File::read() {\n}\nint open_file(\n    int) {\n}\nint Known::f() {\n}\n"
      "namespace {\nint open_file(int) {\n}\n}  // namespace\n";
  CHECK(defined_elsewhere(tree) == Rooms{{"File", {"write/plan"}}, {"open_file", {"write/plan"}}});
}

TEST_CASE("one header asks which compiler runs, and no other") {
  check_none(conditions_on_cuda(project()));

  CHECK(conditions_on_cuda(sound_tree()).empty());
  CHECK(after(conditions_on_cuda, "lib/base/io/file.h", "#ifdef __NVCC__\n#endif\n") ==
        Findings{"lib/base/io/file.h: #ifdef __NVCC__"});
}

}  // namespace layering_test
