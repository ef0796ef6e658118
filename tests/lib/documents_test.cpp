#include <doctest/doctest.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/findings/version.h"

namespace documents_test {

namespace {

namespace fs = std::filesystem;
using Findings = std::vector<std::string>;

/// Lines of a document without its code blocks.
std::vector<std::string> prose(const std::string& text) {
  std::vector<std::string> found;
  std::istringstream lines(text);
  bool code = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("```")) {
      code = !code;
    } else if (!code && !line.starts_with("    ")) {
      found.push_back(line);
    }
  }
  return found;
}

/// The anchors of a document's headings, as code hosts make them: "#two-words" of "## Two words!",
/// "#two-words-1" of the second of that name.
std::set<std::string> anchors(const std::string& text) {
  std::set<std::string> found;
  std::map<std::string, int> seen;
  for (const std::string& line : prose(text)) {
    const size_t level = line.find_first_not_of('#');
    if (level == 0 || level == std::string::npos || line[level] != ' ') continue;
    std::string anchor = "#";
    for (const char c : line.substr(level + 1)) {
      const auto byte = static_cast<unsigned char>(c);
      if (c == ' ') {
        anchor += '-';
      } else if (std::isalnum(byte) || c == '-' || c == '_' || byte >= 0x80) {
        anchor += static_cast<char>(std::tolower(byte));
      }
    }
    const int before = seen[anchor]++;
    found.insert(before == 0 ? anchor : anchor + "-" + std::to_string(before));
  }
  return found;
}

/// Targets of a document's links and images that are not on the web: "lib/README.md#folders".
std::vector<std::string> relative_links(const std::string& text) {
  std::vector<std::string> found;
  for (const std::string& line : prose(text)) {
    for (size_t at = line.find("]("); at != std::string::npos; at = line.find("](", at + 1)) {
      const std::string target = line.substr(at + 2, line.find(')', at) - at - 2);
      if (target.find("://") == std::string::npos) found.push_back(target);
    }
  }
  return found;
}

std::string read(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

/// The project's documents by their path from the root; folders of builds are left out.
std::map<std::string, std::string> documents() {
  std::map<std::string, std::string> found;
  const fs::path root = TWOFOUR_SOURCE_DIR;
  const auto take = [&](const fs::path& path) {
    if (path.extension() == ".md") found[fs::relative(path, root).string()] = read(path);
  };
  for (const auto& entry : fs::directory_iterator(root)) take(entry.path());
  for (const char* area : {"formats", "kernels", "lib", "tools", "tests", "examples"})
    for (const auto& entry : fs::recursive_directory_iterator(root / area)) take(entry.path());
  return found;
}

/// Links of a document at `path` (from the root) that name no file, or no heading in it.
Findings broken_links(const std::string& path, const std::string& text) {
  Findings found;
  const fs::path root = TWOFOUR_SOURCE_DIR, folder = (root / path).parent_path();
  for (const std::string& link : relative_links(text)) {
    const size_t hash = link.find('#');
    const std::string file = link.substr(0, hash);
    const fs::path target = file.empty() ? root / path : folder / file;
    if (!fs::exists(target)) {
      found.push_back(path + ": " + link + ": no such file");
    } else if (hash != std::string::npos &&
               !anchors(file.empty() ? text : read(target)).contains(link.substr(hash))) {
      found.push_back(path + ": " + link + ": no such heading");
    }
  }
  return found;
}

}  // namespace

TEST_CASE("every relative link in a document names a file, and a heading that is in it") {
  size_t links = 0;
  for (const auto& [path, text] : documents()) {
    links += relative_links(text).size();
    for (const std::string& finding : broken_links(path, text)) FAIL_CHECK(finding);
  }
  CHECK(links >= 40);

  CHECK(broken_links("lib/README.md",
                     "See [it](../README.md) and [that](#two-words-more).\n## Two words, `more`\n")
            .empty());
  CHECK(broken_links("lib/README.md", "![a](none.png)\n") ==
        Findings{"lib/README.md: none.png: no such file"});
  CHECK(broken_links("README.md", "[a](lib/README.md#nothing)") ==
        Findings{"README.md: lib/README.md#nothing: no such heading"});
  CHECK(broken_links("README.md", "# A\n[a](#b) [c](https://example.org/none) [d](#a)") ==
        Findings{"README.md: #b: no such heading"});
  CHECK(broken_links("README.md", "```\n[a](none)\n```\n    [a](none)\n").empty());
}

TEST_CASE("README.md is short enough to be read") {
  std::istringstream lines(read(fs::path(TWOFOUR_SOURCE_DIR) / "README.md"));
  int count = 0, wide = 0;
  for (std::string line; std::getline(lines, line); ++count) wide += line.size() > 200;
  CHECK(count >= 100);
  CHECK(count <= 190);
  CHECK(wide <= 15);
}

TEST_CASE("the program, CHANGELOG.md and the Python module have the version of CMakeLists.txt") {
  const auto after = [](const std::string& text, std::string_view word) {
    const size_t begin = text.find(word) + word.size();
    return text.substr(begin, text.find_first_of(" \n", begin) - begin);
  };
  const std::string version =
      after(read(fs::path(TWOFOUR_SOURCE_DIR) / "CMakeLists.txt"), "project(twofour VERSION ");
  CHECK(version == twofour::version());
  std::string changes = read(fs::path(TWOFOUR_SOURCE_DIR) / "CHANGELOG.md");
  // Changes that are not released yet are in front; .ci/release refuses them.
  if (after(changes, "\n## ") == "Unreleased") changes.erase(0, changes.find("\n## ") + 1);
  CHECK(after(changes, "\n## ") == version);
  CHECK(after(read(fs::path(TWOFOUR_SOURCE_DIR) / "tools/python/twofour/__init__.py"), "\n__version__ = ") ==
        '"' + version + '"');
}

}  // namespace documents_test
