#include <doctest/doctest.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <string>
#include <vector>

namespace {

namespace fs = std::filesystem;

/// Which areas a file of an area may include: tools -> lib -> kernels -> formats.
const std::map<std::string, std::set<std::string>> kMayInclude = {
    {"formats", {"formats"}},
    {"kernels", {"kernels", "formats"}},
    {"lib", {"lib", "kernels", "formats"}},
    {"tools", {"tools", "lib", "kernels", "formats"}},
};

/// What nvcc in C++20 mode rejects, or what has no place in a kernel.
const std::set<std::string> kNotInKernels = {"fmt", "xtensor", "CLI", "doctest"};

struct Source {
  std::string area, name;  ///< "lib", "lib/plan.h"
  bool cuda;
  std::vector<std::string> directives;  ///< preprocessor lines, without blanks around '#'
};

std::vector<std::string> read_directives(const fs::path& path) {
  std::vector<std::string> directives;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) {
    const size_t hash = line.find_first_not_of(" \t");
    if (hash == std::string::npos || line[hash] != '#') continue;
    const size_t word = line.find_first_not_of(" \t", hash + 1);
    if (word != std::string::npos) directives.push_back(line.substr(word));
  }
  return directives;
}

std::vector<Source> sources() {
  std::vector<Source> found;
  for (const auto& [area, allowed] : kMayInclude) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(TWOFOUR_SOURCE_DIR) / area)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".h" && extension != ".cpp" && extension != ".cu" && extension != ".cuh") continue;
      found.push_back({area, fs::relative(entry.path(), TWOFOUR_SOURCE_DIR).string(),
                       extension == ".cu" || extension == ".cuh", read_directives(entry.path())});
    }
  }
  return found;
}

/// First folder of an #include: "lib" of `"lib/plan.h"`, "fmt" of `<fmt/format.h>`; empty for others.
std::string included_folder(const std::string& directive) {
  if (!directive.starts_with("include")) return "";
  const size_t open = directive.find_first_of("\"<"), slash = directive.find('/', open);
  return open == std::string::npos || slash == std::string::npos
             ? ""
             : directive.substr(open + 1, slash - open - 1);
}

bool is_quoted_include(const std::string& directive) {
  return directive.starts_with("include") && directive.find('"') != std::string::npos;
}

bool mentions_cuda(std::string directive) {
  for (char& c : directive) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
  return directive.find("CUDA") != std::string::npos || directive.find("NVCC") != std::string::npos;
}

}  // namespace

TEST_CASE("tools include lib, lib includes kernels, kernels include formats, and never the reverse") {
  std::set<std::string> areas;
  for (const Source& source : sources()) {
    areas.insert(source.area);
    for (const std::string& directive : source.directives) {
      const std::string folder = included_folder(directive);
      INFO(source.name, ": #", directive);
      if (kMayInclude.contains(folder)) CHECK(kMayInclude.at(source.area).contains(folder));
      CHECK(folder != "tests");
      // By the path from the root, so that this test sees every one.
      if (is_quoted_include(directive)) CHECK(kMayInclude.contains(folder));
    }
  }
  CHECK(areas.size() == kMayInclude.size());
}

TEST_CASE("no CUDA source includes fmt, xtensor, CLI11 or doctest, not through our headers either") {
  std::map<std::string, const Source*> by_name;
  const std::vector<Source> all = sources();
  for (const Source& source : all) by_name[source.name] = &source;
  for (const Source& source : all) {
    if (!source.cuda) continue;
    std::vector<std::string> open = {source.name};
    std::set<std::string> seen;
    while (!open.empty()) {
      const std::string name = open.back();
      open.pop_back();
      if (!seen.insert(name).second || !by_name.contains(name)) continue;
      for (const std::string& directive : by_name.at(name)->directives) {
        INFO(source.name, " by way of ", name, ": #", directive);
        CHECK(!kNotInKernels.contains(included_folder(directive)));
        if (!is_quoted_include(directive)) continue;
        const size_t begin = directive.find('"') + 1;
        open.push_back(directive.substr(begin, directive.find('"', begin) - begin));
      }
    }
  }
}

TEST_CASE("one header asks which compiler runs, and no other") {
  for (const Source& source : sources()) {
    if (source.name == "formats/hd.h") continue;
    for (const std::string& directive : source.directives) {
      INFO(source.name, ": #", directive);
      if (directive.starts_with("if") || directive.starts_with("elif")) CHECK(!mentions_cuda(directive));
    }
  }
}
