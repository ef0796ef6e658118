#include "lib/recipe/statistics/check_statistics.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <span>

#include "formats/error.h"
#include "formats/naming.h"
#include "kernels/solve/hessian.h"
#include "lib/base/findings/options.h"
#include "lib/base/io/file.h"
#include "lib/base/io/hash.h"
#include "lib/recipe/statistics/solving.h"

namespace twofour {
namespace {

constexpr std::string_view kFisherRowsEnd = ".fisher_rows";

constexpr size_t kShownMissing = 5;
constexpr size_t kReadAtOnce = 1 << 18;  // numbers

/// A matrix that statistics may describe. It is a linear, or one linear of an expert in a stack. Row i of the
/// matrix is row `first + i * step` of the expert.
struct Part {
  std::string name;
  int64_t n, k;
  int64_t expert = 0, first = 0, step = 1;
};

std::vector<Part> parts_of(const Linear& m) {
  const auto parsed = parse_module_name(m.name);
  if (!m.stacked || !parsed || parsed->expert >= 0) return {{m.name, m.n, m.k}};
  const NamingRule& naming = *parsed->naming;
  const bool is_pair = parsed->projection == Projection::kGateUp,
             in_turn = m.rows == GateUpRows::kInterleaved;
  const int64_t n = is_pair ? m.n / 2 : m.n, step = is_pair && in_turn ? 2 : 1;
  std::vector<Part> parts;
  for (int64_t e = 0; e < m.e; ++e) {
    const auto add = [&](const char* leaf, int64_t first) {
      if (leaf != nullptr)
        parts.push_back({fmt::format("{}.{}.{}", parsed->block, e, leaf), n, m.k, e, first, step});
    };
    const Projection p = parsed->projection;
    if (p == Projection::kDown) add(naming.down, 0);
    if (p == Projection::kGate || is_pair) add(naming.gate, 0);
    if (p == Projection::kUp || is_pair) add(naming.up, !is_pair ? 0 : in_turn ? 1 : n);
  }
  return parts;
}

/// The parts of linears by all names that a file may use for them. The name of a stack stands for any of its
/// parts.
std::map<std::string, Part> names_of(const std::vector<Linear>& linears) {
  std::map<std::string, Part> names;
  for (const Linear& m : linears) {
    const std::vector<Part> parts = parts_of(m);
    for (const Part& p : parts) names[p.name] = p;
    if (!parts.empty()) names[m.name] = parts[0];
  }
  return names;
}

/// The entry that serves a part of a linear. It is the part's own entry, or the entry of the whole stack if
/// the part's own entry has no tokens.
const StatisticsEntry* entry_of(const Statistics& s, const Linear& m, const Part& part) {
  const StatisticsEntry* own = s.find(part.name);
  if ((own != nullptr && own->count > 0) || part.name == m.name) return own;
  const StatisticsEntry* shared = s.find(m.name);
  return shared != nullptr && (own == nullptr || shared->count > 0) ? shared : own;
}

void hold_entries(const std::vector<StatisticsEntry>& entries, const std::map<std::string, Part>& names,
                  const std::string& where, const std::string& checkpoint, Problems& problems) {
  for (const StatisticsEntry& e : entries) {
    for (const std::string& member : e.members) {
      const auto at = names.find(member);
      if (at == names.end()) {
        problems.add(fmt::format(
            "{}{}: expected a linear of {}, found none of that name: statistics of another model?", where,
            member, checkpoint));
      } else if (at->second.k != e.k) {
        problems.add("{}{}: expected K of {}, found {}: statistics of another model?", where, member,
                     at->second.k, e.k);
      }
    }
  }
}

/// Reads and factorizes a tensor in the way that choosing weights would.
void check_products(const Statistics& s, const StatisticsEntry& e, bool fisher, int threads) {
  std::vector<float> mean = fisher ? s.read_fisher(e) : s.read_hessian(e);
  take_unit(mean, e.k);
  try {
    DampedInverse(mean, e.k, damping_of(e), threads);
  } catch (const Error& error) {
    throw Error(fmt::format("{}: {}: {}", s.path().string(), s.tensors()[fisher ? *e.fisher : e.sums].name,
                            error.what()));
  }
}

bool is_final_norm(std::string_view name) {
  return name == "model.norm.weight" || name == "norm.weight" || name == "model.language_model.norm.weight" ||
         name == "language_model.model.norm.weight" || name == "transformer.ln_f.weight" ||
         name == "backbone.norm_f.weight" || name == "model.norm_f.weight";
}

}  // namespace

void hold_statistics(const Statistics& statistics, const Checkpoint& checkpoint,
                     const std::vector<Linear>& linears, Problems& problems) {
  const std::map<std::string, Part> names = names_of(linears);
  const std::string path = statistics.path().string(), of = checkpoint.path().string();
  hold_entries(statistics.entries(), names, fmt::format("{}: ", path), of, problems);
  hold_entries(statistics.heldout_entries(), names, fmt::format("{}: heldout.", path), of, problems);
  for (const auto& [name, part] : names) {
    const auto offset = statistics.target_offset(name);
    if (!offset || statistics.tensors()[*offset].shape[0] == part.n) continue;
    const TensorInfo& t = statistics.tensors()[*offset];
    problems.add("{}: {}: expected [{}, {}] (as in {}), found {}", path, t.name, part.n, part.k, name,
                 describe(t));
  }
  for (const TensorInfo& t : statistics.tensors()) {
    if (!t.name.ends_with(kFisherRowsEnd)) continue;
    const std::string name = t.name.substr(0, t.name.size() - kFisherRowsEnd.size());
    const auto at = names.find(name);
    if (at == names.end() || t.shape[0] == at->second.n) continue;
    problems.add("{}: {}: expected [{}] (as in {}), found {}", path, t.name, at->second.n, name, describe(t));
  }
}

std::string final_norm_hash(const Checkpoint& c) {
  for (size_t i = 0; i < c.tensors().size(); ++i) {
    const TensorInfo& t = c.tensors()[i];
    if (!is_final_norm(t.name)) continue;
    std::vector<uint8_t> bytes(t.bytes());
    c.read(i, 0, bytes);
    return hash_bytes(bytes).hex();
  }
  return "";
}

std::string other_weights(const Statistics& s, const Checkpoint& checkpoint, bool strict) {
  const std::string own = final_norm_hash(checkpoint), theirs = s.metadata("weights");
  const std::string configured = strict ? fmt::format(" ({})", options::kStrictStats) : "";
  if (!own.empty() && !theirs.empty()) {
    if (own == theirs) return "";
    return fmt::format("{}: expected statistics of the weights of {}, found a different final norm{}",
                       s.path().string(), checkpoint.path().string(), configured);
  }
  if (!strict) return "";
  if (theirs.empty()) {
    return fmt::format(
        "{}: expected metadata weights, found none, so the weights of these statistics are unknown{}",
        s.path().string(), configured);
  }
  return fmt::format(
      "{}: expected a norm before the head, by which statistics identify weights, found none{}",
      checkpoint.path().string(), configured);
}

void check_sums(const Statistics& s, int threads, Problems& problems) {
  const auto attempt = [&](auto&& read) {
    try {
      read();
    } catch (const ReadError&) {
      throw;
    } catch (const Error& e) {
      problems.add(e.what());
    }
  };
  for (const auto* entries : {&s.entries(), &s.heldout_entries()}) {
    for (const StatisticsEntry& e : *entries) {
      attempt([&] {
        e.kind == StatisticsKind::kDiagonal ? void(s.read_diagonal(e)) : check_products(s, e, false, threads);
      });
      if (e.fisher) attempt([&] { check_products(s, e, true, threads); });
    }
  }
  for (size_t i = 0; i < s.tensors().size(); ++i) {
    const TensorInfo& t = s.tensors()[i];
    const bool is_rows = t.name.ends_with(kFisherRowsEnd);
    if (!is_rows && !t.name.ends_with(".target_offset") && !t.name.ends_with(".saliency")) continue;
    attempt([&] {
      std::vector<float> some(kReadAtOnce);
      for (uint64_t at = 0, count = t.bytes() / sizeof(float); at < count; at += some.size()) {
        const auto read = std::span(some).first(std::min<uint64_t>(some.size(), count - at));
        s.read(i, at, read);
        for (size_t j = 0; is_rows && j < read.size(); ++j) {
          if (read[j] < 0)
            throw Error(fmt::format("{}: {}: element {}: expected a sum of squares, found {}",
                                    s.path().string(), t.name, at + j, read[j]));
        }
      }
    });
  }
}

namespace {

/// Reads weights and computes targets, one row block after another. Caches the inverse of the last entry.
class TargetCheck {
 public:
  TargetCheck(const Statistics& s, const Checkpoint& checkpoint, int threads)
      : s_(s), reader_(checkpoint), threads_(threads) {}

  /// The reason why the targets of a part are too large to choose weights by. Empty if they are not.
  std::string find_excess(const Linear& m, const Part& part, size_t tensor, const StatisticsEntry& entry) {
    prepare(entry);
    TargetExtent extent;
    const auto k = static_cast<size_t>(part.k);
    const int64_t step = std::max<int64_t>(1, static_cast<int64_t>(kReadAtOnce) / part.k);
    for (int64_t row = 0; row < part.n; row += step) {
      const int64_t rows = std::min(step, part.n - row);
      std::vector<float> weights = read_weights(m, part, row, rows), change(weights.size());
      s_.read_target_offset(tensor, entry, row, change);
      for (float& c : change) c = static_cast<float>(double{c} * unit_);
      inverse_->multiply(change);
      std::vector<float> target(weights);
      for (size_t i = 0; i < static_cast<size_t>(rows) * k; ++i) target[i] += kTargetShare * change[i];
      extent.add(weights, target);
    }
    return extent.find_excess();
  }

 private:
  void prepare(const StatisticsEntry& entry) {
    if (entry_ == &entry) return;
    std::vector<float> mean = s_.read_hessian(entry);
    unit_ = take_unit(mean, entry.k);
    inverse_ = std::make_unique<DampedInverse>(mean, entry.k, damping_of(entry), threads_);
    entry_ = &entry;
  }
  std::vector<float> read_weights(const Linear& m, const Part& part, int64_t row, int64_t rows) {
    const auto k = static_cast<size_t>(part.k);
    const int64_t begin = part.first + row * part.step, end = begin + (rows - 1) * part.step + 1;
    std::vector<float> all(static_cast<size_t>(end - begin) * k), own;
    reader_.read_rows(m, part.expert, begin, end, all);
    for (int64_t r = 0; r < rows; ++r) {
      const auto from = all.begin() + r * part.step * part.k;
      own.insert(own.end(), from, from + part.k);
    }
    return own;
  }

  const Statistics& s_;
  WeightReader reader_;
  int threads_;
  const StatisticsEntry* entry_ = nullptr;
  double unit_ = 1;
  std::unique_ptr<DampedInverse> inverse_;
};

}  // namespace

void check_targets(const Statistics& s, const Checkpoint& checkpoint, const std::vector<Linear>& linears,
                   int threads, Problems& problems) {
  TargetCheck check(s, checkpoint, threads);
  for (const Linear& m : linears) {
    for (const Part& part : parts_of(m)) {
      const auto tensor = s.target_offset(part.name);
      const StatisticsEntry* entry = tensor ? s.find(part.name) : nullptr;
      if (entry == nullptr || entry->count == 0 || entry->kind == StatisticsKind::kDiagonal) continue;
      if (const std::string excess = check.find_excess(m, part, *tensor, *entry); !excess.empty())
        problems.add("{}: {}: {}", s.path().string(), s.tensors()[*tensor].name, excess);
    }
  }
}

StatisticsCoverage cover(const Statistics& statistics, const Checkpoint& checkpoint, int threads) {
  Problems ignored, problems;
  const std::vector<Linear> linears = find_weight_modules(checkpoint, ignored);
  hold_statistics(statistics, checkpoint, linears, problems);
  problems.refuse();
  check_sums(statistics, threads, problems);
  problems.refuse();
  check_targets(statistics, checkpoint, linears, threads, problems);
  problems.refuse();
  StatisticsCoverage found;
  for (const Linear& m : linears) {
    if (m.is_table) continue;
    for (const Part& part : parts_of(m)) {
      ++found.linears;
      const StatisticsEntry* e = entry_of(statistics, m, part);
      if (e == nullptr) {
        if (found.missing.size() < kShownMissing) found.missing.push_back(part.name);
        continue;
      }
      if (e->count == 0) {
        ++found.without_tokens;
        continue;
      }
      if (statistics.is_zero(*e)) {
        ++found.without_inputs;
        continue;
      }
      ++found.served;
      const int64_t k = e->kind == StatisticsKind::kBlocks ? e->block : e->k;
      if (e->kind == StatisticsKind::kDiagonal) {
        ++found.diagonal;
      } else {
        ++(e->count >= 4 * k ? found.full : e->count >= k ? found.few : found.fewer);
      }
    }
  }
  const std::string own = final_norm_hash(checkpoint), theirs = statistics.metadata("weights");
  found.knows_weights = !own.empty() && !theirs.empty();
  found.same_weights = own == theirs;
  return found;
}

}  // namespace twofour
