#include <fmt/format.h>
#include <stdlib.h>

#include <nlohmann/json.hpp>

#include "formats/error.h"
#include "tools/bench/bench.h"

namespace twofour {

namespace fs = std::filesystem;

Json spread_to_json(const Spread& s) { return {{"min", s.min}, {"median", s.median}, {"max", s.max}}; }

std::string spread_text(const Spread& s) {
  return fmt::format("{:.2f} ({:.2f} to {:.2f})", s.median, s.min, s.max);
}

WorkDirectory::WorkDirectory(const fs::path& work) {
  std::string name = (work / "twofour-bench-XXXXXX").string();
  if (::mkdtemp(name.data()) == nullptr)
    throw Error(fmt::format("{}: cannot make a directory in it", work.string()));
  path_ = name;
}

WorkDirectory::~WorkDirectory() {
  std::error_code ignored;
  fs::remove_all(path_, ignored);
}

}  // namespace twofour
