#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <regex>

#include "lib/base/io/file.h"

/// Options that messages of lib name: by constants alone, and each is one of the program.

namespace lib_options_test {

using namespace twofour;

namespace fs = std::filesystem;

TEST_CASE("no source of lib has an option as text") {
  const std::regex literal("\"--[a-z]");
  for (const auto& entry : fs::recursive_directory_iterator(fs::path(TWOFOUR_SOURCE_DIR) / "lib")) {
    const std::string kind = entry.path().extension().string();
    if (kind != ".h" && kind != ".cpp") continue;
    CHECK_MESSAGE(!std::regex_search(read_text(entry.path()), literal), entry.path().string());
  }
}

TEST_CASE("each option that messages of lib name is in the program's help") {
  const fs::path root = TWOFOUR_SOURCE_DIR;
  const std::string names = read_text(root / "lib/base/findings/options.h"),
                    help = read_text(root / "tools/README.md");
  const std::regex constant("k[A-Z][A-Za-z]* = \"([a-z_]+)\"");
  size_t count = 0;
  for (std::sregex_iterator at(names.begin(), names.end(), constant); at != std::sregex_iterator();
       ++at, ++count) {
    std::string option = (*at)[1];
    std::replace(option.begin(), option.end(), '_', '-');
    CHECK_MESSAGE(help.find(fmt::format("`--{}", option)) != help.npos, option);
  }
  CHECK(count > 20);
}

}  // namespace lib_options_test
