#include "lib/base/findings/options.h"

#include <algorithm>

namespace twofour {

std::string spelled(std::string_view key, Author author) {
  std::string text(key);
  if (author == Author::kFile) return text;
  std::replace(text.begin(), text.end(), '_', '-');
  return fmt::format("--{}", text);
}

std::string spelled(std::string_view key, std::string_view value, Author author) {
  return fmt::format("{}{} {}", spelled(key, author), author == Author::kFile ? ":" : "", value);
}

}  // namespace twofour
