#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdlib>

#include "formats/error.h"
#include "lib/recipe/artifact/recipe.h"

namespace twofour {
namespace {

/// Opens the file, described by `what`, that rules were made with. The hash is the rule's `hash`, and the
/// opened file goes to the rule's `to`.
template <class File>
void open_file_of_rules(Recipe& recipe, const std::filesystem::path& file, OptionName option,
                        const char* what, std::string Rule::*hash, std::shared_ptr<const File> Rule::*to) {
  std::shared_ptr<const File> opened;
  for (Rule& r : recipe.rules) {
    if ((r.*hash).empty()) continue;
    if (file.empty()) {
      throw Error(
          fmt::format("{}: expected the file of {} by which weights were chosen, XXH3-128 {}, found none",
                      option, what, r.*hash));
    }
    if (!opened) opened = std::make_shared<const File>(File::open(file));
    if (const std::string found = opened->hash().hex(); found != r.*hash) {
      throw Error(fmt::format("{}: expected the file of {} with XXH3-128 {}, found {}", file.string(), what,
                              r.*hash, found));
    }
    r.*to = opened;
  }
  if (!opened && !file.empty()) {
    throw Error(fmt::format("{}: expected none, because no weights were chosen by {}, found {}", option, what,
                            file.string()));
  }
}

}  // namespace

void open_statistics(Recipe& recipe, const std::filesystem::path& file) {
  open_file_of_rules(recipe, file, options::kStats, "statistics", &Rule::statistics_hash, &Rule::statistics);
}

void open_masks(Recipe& recipe, const std::filesystem::path& file) {
  open_file_of_rules(recipe, file, options::kMask, "masks", &Rule::mask_hash, &Rule::masks);
}

std::string Recipe::what() const {
  for (const Rule& rule : rules) {
    if (rule.to != rules[0].to) return "mixed";
  }
  if (rules.empty()) return edit ? std::string(edit.name()) : "mixed";
  return rules[0].to;
}

uint64_t parse_size(const std::string& text) {
  size_t digits = 0;
  while (digits < text.size() &&
         (std::isdigit(static_cast<unsigned char>(text[digits])) || text[digits] == '.'))
    ++digits;
  const std::string unit = text.substr(digits);
  double factor = 0;
  for (const auto& [name, value] :
       {std::pair{"", 1.0}, {"B", 1.0}, {"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"TB", 1e12}}) {
    if (unit == name) factor = value;
  }
  const bool is_number = digits > 0 && digits < 16 && std::count(text.begin(), text.end(), '.') <= 1;
  const double number = is_number ? std::strtod(text.substr(0, digits).c_str(), nullptr) : 0;
  if (factor == 0 || number * factor < 1 || number * factor > 1e18) {
    throw Error(fmt::format("expected a size such as 5GB or 500MB, found '{}'", text));
  }
  return static_cast<uint64_t>(number * factor);
}

}  // namespace twofour
