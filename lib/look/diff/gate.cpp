#include "lib/look/diff/gate.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>
#include <string_view>

#include "formats/error.h"
#include "lib/base/findings/options.h"

namespace twofour {
namespace {

[[noreturn]] void refuse(const std::string& word) {
  std::string classes;
  for (size_t i = 0; i < kDiffClasses; ++i) {
    classes += fmt::format("{}, ", diff_class_name(static_cast<DiffClass>(i)));
  }
  throw Error(
      fmt::format("{}: expected any, none, config, {}cosine<X (X from -1 to 1), snr<DB or max-abs>X (X "
                  "not negative), found '{}'",
                  options::kFailOn, classes.substr(classes.find(',') + 2), word));
}

/// Parses the limit in a word such as "cosine<0.9", which must be in [least, most]. nullopt if the word does
/// not begin with `name`.
std::optional<double> limit_of(const std::string& word, std::string_view name, double least, double most) {
  if (!word.starts_with(name)) return std::nullopt;
  double value = 0;
  const char *begin = word.data() + name.size(), *end = word.data() + word.size();
  const auto [stop, error] = std::from_chars(begin, end, value);
  if (error != std::errc() || stop != end || !(value >= least && value <= most)) refuse(word);
  return value;
}

}  // namespace

DiffGate default_diff_gate() {
  DiffGate gate;
  gate.classes.fill(true);
  gate.config = true;
  for (const DiffClass passed :
       {DiffClass::kEqual, DiffClass::kReciprocal, DiffClass::kWithin, DiffClass::kUnread}) {
    gate.classes[static_cast<size_t>(passed)] = false;
  }
  return gate;
}

DiffGate parse_diff_gate(const std::vector<std::string>& words) {
  if (words.empty()) return default_diff_gate();
  constexpr double kMost = std::numeric_limits<double>::max();
  DiffGate gate;
  for (const std::string& word : words) {
    if (word == "none") {
      if (words.size() > 1)
        throw Error(fmt::format("{}: expected none alone, found other words beside it", options::kFailOn));
    } else if (word == "any") {
      const DiffGate any = default_diff_gate();
      for (size_t i = 0; i < kDiffClasses; ++i) gate.classes[i] |= any.classes[i];
      gate.config = true;
    } else if (word == "config") {
      gate.config = true;
    } else if (const auto cosine = limit_of(word, "cosine<", -1, 1)) {
      gate.cosine_below = std::max(*cosine, gate.cosine_below.value_or(*cosine));
    } else if (const auto snr = limit_of(word, "snr<", -kMost, kMost)) {
      gate.snr_below = std::max(*snr, gate.snr_below.value_or(*snr));
    } else if (const auto max_abs = limit_of(word, "max-abs>", 0, kMost)) {
      gate.max_abs_above = std::min(*max_abs, gate.max_abs_above.value_or(*max_abs));
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
  // Written so that NaN figures fail.
  return (cosine_below && !(e.error.cosine() >= *cosine_below)) ||
         (snr_below && !(e.error.snr_db() >= *snr_below)) ||
         (max_abs_above && !(e.error.max_abs <= *max_abs_above));
}

uint64_t DiffGate::count(const DiffResult& result) const {
  const auto keys = std::ranges::count_if(result.config, [](const ConfigDifference& d) { return d.counts; });
  const auto entries = std::ranges::count_if(result.entries, [&](const DiffEntry& e) { return fails(e); });
  return static_cast<uint64_t>(entries + (config ? keys : 0));
}

}  // namespace twofour
