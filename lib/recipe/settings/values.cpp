#include "lib/recipe/settings/values.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "formats/error.h"

namespace twofour {
namespace {

using Kind = InputScale::Kind;

constexpr std::string_view kConstantOf = "constant=", kFrom = "from ";

struct KindWord {
  std::string_view word;
  Kind kind;
};
constexpr KindWord kKinds[] = {{"keep", Kind::kKeep},
                               {"none", Kind::kNone},
                               {"constant", Kind::kConstant},
                               {"neighbours", Kind::kNeighbours},
                               {"given", Kind::kGiven}};

bool is_scale(float value) { return std::isfinite(value) && value > 0 && std::isfinite(1 / value); }

}  // namespace

void refuse_value(const std::string& expected, std::string_view found) {
  throw Error(fmt::format("expected {}, found '{}'", expected, found));
}

std::optional<InputScale> InputScale::parse(std::string_view word) {
  InputScale scale;
  scale.text_ = word;
  if (word.empty()) return scale;
  for (const KindWord& known : kKinds) {
    if (word == known.word) scale.kind_ = known.kind;
  }
  if (word.starts_with(kFrom)) scale.kind_ = Kind::kFile;
  if (word.starts_with(kConstantOf)) {
    const std::string_view number = word.substr(kConstantOf.size());
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), scale.constant_);
    if (error == std::errc() && end == number.data() + number.size() && is_scale(scale.constant_))
      scale.kind_ = Kind::kConstant;
  }
  return scale.empty() ? std::nullopt : std::optional(scale);
}

std::string InputScale::expected(std::string_view word) {
  return word.starts_with(kConstantOf) ? "constant or constant=X with a positive number X"
                                       : "keep, none, constant, constant=X, neighbours or from FILE";
}

void InputScale::read(std::string_view word) {
  const std::optional<InputScale> known = parse(word);
  if (!known) refuse_value(expected(word), word);
  *this = *known;
}

std::string InputScale::file() const { return kind_ == Kind::kFile ? text_.substr(kFrom.size()) : ""; }

}  // namespace twofour
