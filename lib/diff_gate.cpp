#include "lib/diff_gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string_view>

#include "formats/error.h"

namespace twofour {
namespace {

[[noreturn]] void refuse(const std::string& word) {
  std::string classes;
  for (size_t i = 0; i < kDiffClasses; ++i) {
    classes += fmt::format("{}, ", diff_class_name(static_cast<DiffClass>(i)));
  }
  throw Error(fmt::format("--fail-on: expected any, none, {}cosine<X, snr<DB or max-abs>X, found '{}'",
                          classes.substr(classes.find(',') + 2), word));
}

/// The number of "NAME<number".
std::optional<double> limit_of(const std::string& word, std::string_view name) {
  if (!word.starts_with(name)) return std::nullopt;
  double value = 0;
  const char *begin = word.data() + name.size(), *end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || stop != end || !std::isfinite(value)) refuse(word);
  return value;
}

}  // namespace

DiffGate default_diff_gate() {
  DiffGate gate;
  gate.classes.fill(true);
  for (const DiffClass passed : {DiffClass::kEqual, DiffClass::kReciprocal, DiffClass::kWithin}) {
    gate.classes[static_cast<size_t>(passed)] = false;
  }
  return gate;
}

DiffGate parse_diff_gate(const std::vector<std::string>& words) {
  if (words.empty()) return default_diff_gate();
  DiffGate gate;
  for (const std::string& word : words) {
    if (word == "none") {
      if (words.size() > 1) throw Error("--fail-on: expected none alone, found other words beside it");
    } else if (word == "any") {
      const DiffGate any = default_diff_gate();
      for (size_t i = 0; i < kDiffClasses; ++i) gate.classes[i] |= any.classes[i];
    } else if (const auto cosine = limit_of(word, "cosine<")) {
      gate.cosine_below = cosine;
    } else if (const auto snr = limit_of(word, "snr<")) {
      gate.snr_below = snr;
    } else if (const auto max_abs = limit_of(word, "max-abs>")) {
      gate.max_abs_above = max_abs;
    } else {
      size_t i = 1;  // equal entries never fail
      while (i < kDiffClasses && word != diff_class_name(static_cast<DiffClass>(i))) ++i;
      if (i == kDiffClasses) refuse(word);
      gate.classes[i] = true;
    }
  }
  return gate;
}

bool DiffGate::fails(const DiffEntry& e) const {
  if (classes[static_cast<size_t>(e.cls)]) return true;
  if (!e.has_figures()) return false;
  // Comparisons turned so that figures that are NaN fail.
  return (cosine_below && !(e.error.cosine() >= *cosine_below)) ||
         (snr_below && !(e.error.snr_db() >= *snr_below)) ||
         (max_abs_above && !(e.error.max_abs <= *max_abs_above));
}

uint64_t DiffGate::count(const DiffResult& result) const {
  return static_cast<uint64_t>(std::count_if(result.entries.begin(), result.entries.end(),
                                             [&](const DiffEntry& e) { return fails(e); }));
}

}  // namespace twofour
