#include "lib/look/diff/diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <set>

#include "formats/module_names.h"
#include "lib/base/findings/options.h"
#include "lib/base/io/file.h"
#include "lib/look/diff/pairs.h"
#include "lib/look/inspect/inspect.h"
#include "lib/source/config/quantization_config.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// The layer, projection and expert of an entry, from its name.
struct EntryPlace {
  std::string layer, projection;
  int64_t expert = -1;
};

/// Splits the name of an entry. The first number is that of the layer, and a number after "experts" is that
/// of an expert.
EntryPlace place_of(const std::string& name) {
  EntryPlace place;
  std::string_view previous;
  for (size_t begin = 0; begin <= name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string_view piece(name.data() + begin, end - begin);
    const bool number = is_number_part(piece) && piece.size() < 10;
    if (number && place.layer.empty() && begin > 0 && !previous.ends_with("experts")) {
      place.layer = name.substr(0, end);
      place.projection.clear();
    } else if (number && place.expert < 0 && previous.ends_with("experts")) {
      place.expert = std::stoll(std::string(piece));
    } else {
      if (!place.projection.empty()) place.projection += '.';
      place.projection += piece;
    }
    previous = piece;
    begin = end + 1;
  }
  return place;
}

/// Removes the pairs that the options do not select.
void restrict_to(const Matrices& a, const Matrices& b, const DiffOptions& options,
                 std::vector<DiffPair>& pairs) {
  if (options.include.empty() && options.exclude.empty()) return;
  Matcher include(options.include), exclude(options.exclude);
  const auto any = [&](Matcher& matcher, const DiffPair& p) {
    const DiffEntry& e = p.entry;
    bool found = matcher.matches(e.name);
    for (const DiffSide* side : {&e.a, &e.b}) found |= side->is_there() && matcher.matches(side->tensor);
    if (p.matrices.a != nullptr) found |= matcher.matches(a.module_of(*p.matrices.a).name);
    if (p.matrices.b != nullptr) found |= matcher.matches(b.module_of(*p.matrices.b).name);
    return found;
  };
  std::erase_if(pairs, [&](const DiffPair& p) {
    const bool in = options.include.empty() || any(include, p);
    return any(exclude, p) || !in;
  });
  const std::string expected =
      fmt::format("a name in {} or {}", a.checkpoint().path().string(), b.checkpoint().path().string());
  include.refuse_unused(options::kInclude.text(), expected.c_str());
  exclude.refuse_unused(options::kExclude.text(), expected.c_str());
}

/// True if `x` is reported as worse than `y`; NaN is the worst.
bool is_worse(const ValueError& x, const ValueError& y) {
  return !std::isnan(y.snr_db()) && !(x.snr_db() >= y.snr_db());
}

void add_rows(DiffResult& result) {
  struct RowOrder {
    bool operator()(const std::pair<std::string, std::string>& x,
                    const std::pair<std::string, std::string>& y) const {
      return x.first == y.first ? natural_less(x.second, y.second) : natural_less(x.first, y.first);
    }
  };
  std::map<std::pair<std::string, std::string>, std::vector<size_t>, RowOrder> members;
  for (size_t i = 0; i < result.entries.size(); ++i) {
    EntryPlace place = place_of(result.entries[i].name);
    members[{std::move(place.layer), std::move(place.projection)}].push_back(i);
  }
  for (const auto& [place, entries] : members) {
    DiffRow row;
    row.layer = place.first;
    row.projection = place.second;
    for (const size_t i : entries) {
      DiffEntry& e = result.entries[i];
      e.row = result.rows.size();
      ++row.counts[static_cast<size_t>(e.cls)];
      if (!e.has_figures()) continue;
      const bool is_first = row.error.weights == 0;
      if (row.error.first.e < 0) row.first = e.first;
      row.error += e.error;
      if (is_first || is_worse(e.error, result.entries[row.worst].error)) row.worst = i;
    }
    result.rows.push_back(std::move(row));
  }
}

/// The sizes, by name, of all files except those of tensors, caches and version control.
std::map<std::string, uint64_t> other_files(const Checkpoint& c) {
  if (!c.is_directory()) return {};
  auto files = files_below(c.path());
  for (const Shard& s : c.shards()) files.erase(s.name);
  std::erase_if(files,
                [](const auto& f) { return f.first.starts_with(".git/") || f.first.starts_with(".cache/"); });
  return files;
}

/// True if --headers-only compares the contents of a file of this size, which has no weights.
bool is_small(uint64_t bytes) {
  constexpr uint64_t kMost = 64u << 20;
  return bytes <= kMost;
}

void compare_files(const Checkpoint& a, const Checkpoint& b, bool headers_only, DiffResult& result) {
  const auto ours = other_files(a), theirs = other_files(b);
  std::set<std::string> names;
  for (const auto* files : {&ours, &theirs}) {
    for (const auto& [name, size] : *files) names.insert(name);
  }
  for (const std::string& name : names) {
    const auto x = ours.find(name), y = theirs.find(name);
    auto state = DiffFile::State::kOnlyA;
    if (x == ours.end()) {
      state = DiffFile::State::kOnlyB;
    } else if (y != theirs.end()) {
      if (headers_only && x->second == y->second && !is_small(x->second)) continue;
      const bool same = x->second == y->second && same_contents(a.path() / name, b.path() / name);
      state = same ? DiffFile::State::kSame : DiffFile::State::kDifferent;
    }
    result.files.push_back({name, state});
  }
}

/// Searches all of B for matrices of A that differ from B's matrices of the same name.
void find_elsewhere(const Matrices& ours, const Matrices& theirs, const std::vector<DiffPair>& pairs,
                    DiffResult& result) {
  std::map<const StoredMatrix*, const std::string*> names;
  for (const auto& [name, matrix] : ours.all()) names[&matrix] = &name;
  std::map<std::string, int64_t> differ;
  for (const DiffPair& p : pairs) {
    if (p.entry.cls != DiffClass::kDifferent || p.matrices.a == nullptr) continue;
    if (const auto at = names.find(p.matrices.a); at != names.end())
      differ[*at->second] = p.entry.error.first.n;
  }
  if (!differ.empty()) result.moved = find_moved(ours, theirs, "B", &differ).moved;
}

/// Takes back that tensors are equal if their numbers have no meaning that is known to be the same: a
/// checkpoint does not read them, and the other reads them or has another quantization config.
void refuse_unlike_meanings(const Matrices& ours, const Matrices& theirs, std::vector<DiffPair>& pairs) {
  const auto coded_of = [](const Matrices& m) {
    std::vector<bool> read(m.checkpoint().tensors().size());
    for (const Linear& linear : m.modules()) {
      for (const size_t tensor : linear.tensors()) read[tensor] = linear.format->coded;
    }
    return read;
  };
  const std::vector<bool> read_by_a = coded_of(ours), read_by_b = coded_of(theirs);
  std::optional<bool> same_config;
  for (DiffPair& p : pairs) {
    const bool is_equal = p.entry.cls == DiffClass::kEqual || p.entry.cls == DiffClass::kWithin;
    if (!is_equal || p.entry.kind != DiffKind::kTensor || !p.a || !p.b) continue;
    const bool by_a = read_by_a[p.a->tensor], by_b = read_by_b[p.b->tensor];
    if (by_a && by_b) continue;
    const std::string_view module = module_of(p.entry.name);
    const std::string *of_a = ours.why_left_out(module), *of_b = theirs.why_left_out(module);
    if (!by_a && !by_b) {
      const TensorInfo& t = ours.checkpoint().tensors()[p.a->tensor];
      if (t.shape.size() < 2 || is_float(t.dtype)) continue;  // no codes
      if (!same_config)
        same_config = source_quantization(ours.checkpoint()) == source_quantization(theirs.checkpoint());
      const bool is_one_sided = (of_a != nullptr) != (of_b != nullptr);
      if (!is_one_sided && (of_a == nullptr || *same_config)) continue;
    }
    const std::string* const why = !by_a && of_a != nullptr ? of_a : of_b;
    p.entry.cls = DiffClass::kUnreadable;
    p.entry.message = fmt::format("the bytes are equal, but not what they mean: {}",
                                  why != nullptr ? *why : "one checkpoint has no codes here");
    p.entry.error = {};
    p.entry.same_bytes = false;
  }
}

}  // namespace

const char* diff_class_name(DiffClass cls) {
  constexpr std::array<const char*, kDiffClasses> kNames = {
      "equal",       "reciprocal", "within-tolerance", "different", "unlike-shape",
      "unlike-type", "unreadable", "removed",          "added",     "not-read"};
  return kNames[static_cast<size_t>(cls)];
}

const char* diff_kind_name(DiffKind kind) {
  constexpr std::array<const char*, 4> kNames = {"weights", "bias", "input-scale", "tensor"};
  return kNames[static_cast<size_t>(kind)];
}

uint64_t DiffRow::entries() const {
  uint64_t sum = 0;
  for (const uint64_t count : counts) sum += count;
  return sum;
}

DiffResult diff(const Checkpoint& a, const Checkpoint& b, const DiffOptions& options, Progress& progress) {
  DiffResult result;
  result.a = a.path().string();
  result.b = b.path().string();
  result.a_what = describe_kind(a);
  result.b_what = describe_kind(b);
  result.a_tensors = a.tensors().size();
  result.b_tensors = b.tensors().size();
  result.tolerance = options.tolerance;
  result.headers_only = options.headers_only;
  for (const Checkpoint* c : {&a, &b}) {
    result.findings.insert(result.findings.end(), c->findings().begin(), c->findings().end());
  }
  Findings odd;  // about inconsistent modules, which are compared by tensor
  Matrices ours(a, odd), theirs(b, odd);
  ours.add_tables_of(theirs);
  theirs.add_tables_of(ours);
  for (Finding& f : odd) {
    f.id = "compared-as-stored";
    result.findings.push_back(std::move(f));
  }
  std::vector<DiffPair> pairs = pair_up(ours, theirs);
  restrict_to(ours, theirs, options, pairs);
  for (DiffPair& p : pairs) p.entry.expert = place_of(p.entry.name).expert;
  compare_pairs(ours, theirs, options, progress, pairs);
  if (!options.headers_only) refuse_unlike_meanings(ours, theirs, pairs);
  if (!options.headers_only) find_elsewhere(ours, theirs, pairs, result);
  for (DiffPair& p : pairs) {
    ++result.counts[static_cast<size_t>(p.entry.cls)];
    result.renamed += p.entry.renamed();
    result.same_bytes += p.entry.same_bytes;
    result.entries.push_back(std::move(p.entry));
  }
  add_rows(result);
  compare_files(a, b, options.headers_only, result);
  if (options.configs && options.include.empty()) result.config = compare_configs(ours, theirs);
  return result;
}

}  // namespace twofour
