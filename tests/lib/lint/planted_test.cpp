#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>
#include <map>
#include <set>

#include "formats/error.h"
#include "lib/lint/lint.h"
#include "tests/support/faults/planted.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/slow_float.h"

// Lint against changes that are planted in sound checkpoints. TWOFOUR_PLANTED=1 prints each miss with what
// was found instead; held-out changes are only counted, so that no rule is written to them: =2 prints those,
// too.

namespace planted_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// The share of faults that must be found: of those in sight, and of those held out.
constexpr double kFoundShare = 0.98, kFoundShareHeldOut = 0.95;
/// How many harmless changes may be flagged.
constexpr int kFalseAlarms = 0;

int verbosity() {
  const char* text = std::getenv("TWOFOUR_PLANTED");
  return text != nullptr ? std::atoi(text) : 0;
}

LintReport lint_quietly(const fs::path& path, const fs::path& against = {}) {
  Progress progress;
  return lint(path, {.against = against}, progress);
}

/// Findings above a note, a line each.
std::vector<std::string> alarms(const LintReport& report) {
  std::vector<std::string> lines;
  for (const LintFinding& f : report.findings) {
    if (f.severity != Severity::kNote)
      lines.push_back(fmt::format("{}: {}: {}", lint_rules()[f.rule].id, f.where(), f.message));
  }
  return lines;
}

/// True if a line mentions a place: all words of an alternative.
bool mentions(const std::string& line, const std::string& place) {
  for (size_t begin = 0; begin <= place.size();) {
    const size_t end = std::min(place.find(" | ", begin), place.size());
    const std::string alternative = place.substr(begin, end - begin);
    bool all = true;
    for (size_t at = 0; at < alternative.size();) {
      const size_t stop = std::min(alternative.find(' ', at), alternative.size());
      all = all && line.find(alternative.substr(at, stop - at)) != std::string::npos;
      at = stop + 1;
    }
    if (all) return true;
    begin = end + 3;
  }
  return false;
}

/// The findings of lint above a note in a planted change. A refusal to read it counts as a finding.
std::vector<std::string> lint_planted(const Planted& planted) {
  const Scratch scratch;
  std::mt19937 random(1);
  Save save = base_checkpoint(planted.base);
  if (planted.against) write_planted(save, scratch / "sound");
  if (planted.change) planted.change(save, random);
  write_planted(save, scratch / "changed");
  if (planted.change_files) planted.change_files(scratch / "changed", random);
  try {
    return alarms(lint_quietly(scratch / "changed", planted.against ? scratch / "sound" : fs::path()));
  } catch (const Error& error) {
    return {fmt::format("refused: {}", error.what())};
  }
}

struct Count {
  int faults = 0, found = 0, harmless = 0, flagged = 0;
  void operator+=(const Count& other) {
    faults += other.faults, found += other.found, harmless += other.harmless, flagged += other.flagged;
  }
};

/// Counts by clause; prints what was missed, with what was said instead, where `print` is set. Adds the rules
/// that found something to `rules`.
std::map<std::string, Count> count(const std::vector<Planted>& changes, bool print,
                                   std::set<std::string>& rules) {
  std::map<std::string, Count> counts;
  for (const Planted& planted : changes) {
    const std::vector<std::string> lines = lint_planted(planted);
    for (const std::string& line : lines) rules.insert(line.substr(0, line.find(':')));
    const bool found = std::any_of(lines.begin(), lines.end(),
                                   [&](const std::string& line) { return mentions(line, planted.place); });
    Count& c = counts[planted.clause];
    const bool is_fault = planted.expect == Expect::kFault;
    c += is_fault ? Count{1, found, 0, 0} : Count{0, 0, 1, !lines.empty()};
    if (!print || (is_fault ? found : lines.empty())) continue;
    fmt::print("{} {} {}: {} ({})\n", is_fault ? "missed" : "flagged", planted.clause,
               base_name(planted.base), planted.what, planted.place);
    for (size_t i = 0; i < std::min<size_t>(lines.size(), 3); ++i) fmt::print("    {:.200}\n", lines[i]);
  }
  return counts;
}

Count print_table(const char* title, const std::map<std::string, Count>& counts) {
  Count sum;
  fmt::print("{:44} found/faults  flagged/harmless\n", title);
  for (const Clause& clause : planted_clauses()) {
    const auto at = counts.find(clause.id);
    if (at == counts.end()) continue;
    const Count& c = at->second;
    fmt::print("{:5} {:38} {:5}/{:<6} {:8}/{}\n", clause.id, clause.what, c.found, c.faults, c.flagged,
               c.harmless);
    sum += c;
  }
  fmt::print("{:44} {:5}/{:<6} {:8}/{}\n", "", sum.found, sum.faults, sum.flagged, sum.harmless);
  return sum;
}

/// Values of all 256 bytes as E4M3; those of E2M1 are its first 16.
std::array<double, 256> values_of(const SlowFloat& format) {
  std::array<double, 256> values{};
  for (unsigned code = 0; code < 256; ++code) values[code] = format.value(code);
  return values;
}
const std::array<double, 256> kE4m3 = values_of({4, 3, 7, 0x7E}), kE2m1 = values_of({2, 1, 1, 7});

/// One element of a tensor by the definition of its type; bytes of other types as numbers.
double element(const TensorData& t, size_t i) {
  if (t.dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, t.bytes.data() + 4 * i, sizeof(value));
    return double{value};
  }
  if (t.dtype == DType::kBF16)
    return double{std::bit_cast<float>(uint32_t{t.bytes[2 * i]} << 16 | uint32_t{t.bytes[2 * i + 1]} << 24)};
  if (t.dtype == DType::kF8E4M3) return kE4m3[t.bytes[i]];
  return t.bytes[i];
}

/// The numbers that a checkpoint stands for: NVFP4 modules dequantized, all other tensors one by one.
std::map<std::string, std::vector<double>> numbers_of(const Save& save) {
  std::map<std::string, const TensorData*> tensors;
  for (const auto& [file, shard] : save.shards) {
    for (const TensorData& t : shard) tensors[t.name] = &t;
  }
  std::map<std::string, std::vector<double>> numbers;
  std::set<std::string> parts;  // of modules
  for (const auto& [name, t] : tensors) {
    const std::string module = name.substr(0, name.rfind('.') + 1);
    const bool modelopt = name == module + "weight" && tensors.contains(module + "weight_scale_2");
    const bool packed = name == module + "weight_packed" && tensors.contains(module + "weight_global_scale");
    if (!modelopt && !packed) continue;
    const std::string global = module + (modelopt ? "weight_scale_2" : "weight_global_scale");
    const TensorData& scales = *tensors.at(module + "weight_scale");
    const double g = element(*tensors.at(global), 0);
    std::vector<double>& all = numbers[name];
    for (size_t i = 0; i < 2 * t->bytes.size(); ++i) {
      const unsigned code = t->bytes[i / 2] >> (i % 2 * 4) & 15u;
      const double value = kE2m1[code] * element(scales, i / 16);
      all.push_back(modelopt ? value * g : value / g);
    }
    parts.insert({name, global, scales.name});
  }
  for (const auto& [name, t] : tensors) {
    if (parts.contains(name)) continue;
    const size_t size = t->dtype == DType::kF32 ? 4 : t->dtype == DType::kBF16 ? 2 : 1;
    std::vector<double>& all = numbers[name];
    for (size_t i = 0; i < t->bytes.size() / size; ++i) all.push_back(element(*t, i));
  }
  return numbers;
}

}  // namespace

TEST_CASE("nothing is found in the checkpoints that changes are planted in") {
  for (int b = 0; b <= static_cast<int>(kLastBase); ++b) {
    const Scratch scratch;
    CAPTURE(base_name(static_cast<Base>(b)));
    write_planted(base_checkpoint(static_cast<Base>(b)), scratch / "sound");
    CHECK(alarms(lint_quietly(scratch / "sound")) == std::vector<std::string>{});
  }
}

TEST_CASE("planted changes are named once, by a known clause, and each clause has three at least") {
  std::set<std::string> names;
  std::map<std::string, int> by_clause;
  for (const auto& changes : {planted_changes(), held_out_changes()}) {
    for (const Planted& p : changes) {
      CAPTURE(p.what);
      CHECK(names.insert(fmt::format("{} {} {}", p.clause, base_name(p.base), p.what)).second);
      CHECK((p.expect == Expect::kFault) == !std::string_view(p.place).empty());
      CHECK((p.change || p.change_files));
      ++by_clause[p.clause];
    }
  }
  size_t known = 0;
  for (const Clause& clause : planted_clauses()) {
    CAPTURE(clause.id);
    CHECK(by_clause[clause.id] >= 3);
    known += by_clause.count(clause.id);
  }
  CHECK(known == by_clause.size());
}

TEST_CASE("harmless changes leave every number of a checkpoint as it was") {
  std::map<Base, std::map<std::string, std::vector<double>>> bases;
  for (const auto& changes : {planted_changes(), held_out_changes()}) {
    for (const Planted& planted : changes) {
      if (planted.expect != Expect::kHarmless || !planted.change) continue;
      CAPTURE(std::string(planted.what));
      CAPTURE(base_name(planted.base));
      std::mt19937 random(1);
      Save save = base_checkpoint(planted.base);
      planted.change(save, random);
      if (!bases.contains(planted.base)) bases[planted.base] = numbers_of(base_checkpoint(planted.base));
      const auto& before = bases.at(planted.base);
      const auto after = numbers_of(save);
      for (const auto& [name, numbers] : before) {
        CAPTURE(name);
        REQUIRE(after.contains(name));
        CHECK(after.at(name) == numbers);
      }
    }
  }
}

TEST_CASE("faults are found, and harmless changes are not; each rule finds one") {
  std::set<std::string> rules;
  const Count count_all = print_table("planted", count(planted_changes(), verbosity() > 0, rules));
  CHECK(count_all.found >= kFoundShare * count_all.faults);
  CHECK(count_all.flagged <= kFalseAlarms);
  const Count held_out = print_table("held out", count(held_out_changes(), verbosity() > 1, rules));
  CHECK(held_out.found >= kFoundShareHeldOut * held_out.faults);
  CHECK(held_out.flagged <= kFalseAlarms);
  for (const auto& faults : {file_faults(), content_faults(), model_faults()}) {
    for (const Fault& fault : faults) rules.insert(fault.rule);
  }
  // These need an artifact, or are notes, and have tests of their own.
  for (const char* id : {"not-2-4", "no-manifest", "bad-manifest", "manifest-hash", "meta-nibbles", "padding",
                         "scale-copies", "folded", "download-leftover", "baseline-stale",
                         "renumbered-experts", "blob-hash", "other-config-key"})
    rules.insert(id);
  // These need matrices of real size: see lint_regions_test.cpp.
  for (const char* id : {"odd-region", "outlier-weight", "uneven-parts", "cut-off-weights"}) rules.insert(id);
  for (const LintRule& rule : lint_rules()) {
    CAPTURE(std::string(rule.id));
    if (!rule.opt_in) CHECK(rules.contains(rule.id));
  }
}

}  // namespace planted_test
