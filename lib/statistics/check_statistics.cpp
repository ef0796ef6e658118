#include "lib/statistics/check_statistics.h"

#include <fmt/format.h>

#include <map>

#include "formats/error.h"
#include "formats/naming.h"
#include "lib/io/hash.h"

namespace twofour {
namespace {

constexpr size_t kShownMissing = 5;

/// The linears by all names that a file may call them: K, and the module of the checkpoint.
std::map<std::string, int64_t> names_of(const std::vector<Linear>& linears) {
  std::map<std::string, int64_t> names;
  for (const Linear& m : linears) {
    names[m.name] = m.k;
    const auto parsed = parse_module_name(m.name);
    if (!m.stacked || !parsed || parsed->expert >= 0) continue;
    const NamingRule& naming = *parsed->naming;
    for (int64_t e = 0; e < m.e; ++e) {
      const auto add = [&](const char* leaf) {
        names[fmt::format("{}.{}.{}", parsed->block, e, leaf)] = m.k;
      };
      if (parsed->projection == Projection::kDown) {
        add(naming.down);
      } else {
        add(naming.gate);
        add(naming.up);
      }
    }
  }
  return names;
}

bool is_final_norm(std::string_view name) {
  return name == "model.norm.weight" || name == "norm.weight" || name == "model.language_model.norm.weight" ||
         name == "language_model.model.norm.weight" || name == "transformer.ln_f.weight";
}

}  // namespace

void hold_statistics(const Statistics& statistics, const Checkpoint& checkpoint,
                     const std::vector<Linear>& linears, Problems& problems) {
  const std::map<std::string, int64_t> names = names_of(linears);
  for (const StatisticsEntry& e : statistics.entries()) {
    for (const std::string& member : e.members) {
      const auto at = names.find(member);
      if (at == names.end()) {
        problems.add(fmt::format(
            "{}: {}: expected a linear of {}, found none of that name: statistics of another model?",
            statistics.path().string(), member, checkpoint.path().string()));
      } else if (at->second != e.k) {
        problems.add(fmt::format("{}: {}: expected K of {}, found {}: statistics of another model?",
                                 statistics.path().string(), member, at->second, e.k));
      }
    }
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

StatisticsCoverage cover(const Statistics& statistics, const Checkpoint& checkpoint) {
  Problems ignored, problems;
  const std::vector<Linear> linears = find_weight_modules(checkpoint, ignored);
  hold_statistics(statistics, checkpoint, linears, problems);
  problems.refuse();
  StatisticsCoverage found;
  for (const StatisticsEntry& e : statistics.entries()) {
    if (e.kind == StatisticsKind::kDiagonal) {
      statistics.read_diagonal(e);
    } else {
      statistics.read_hessian(e);
    }
    if (e.fisher) statistics.read_fisher(e);
    for (const std::string& m : e.members) {
      const auto offset = statistics.target_offset(m);
      if (!offset || statistics.find(m) != &e) continue;
      std::vector<float> row(static_cast<size_t>(e.k));
      for (int64_t i = 0; i < statistics.tensors()[*offset].shape[0]; ++i)
        statistics.read_target_offset(*offset, e, i, row);
    }
  }
  for (const Linear& m : linears) {
    const auto parsed = parse_module_name(m.name);
    const StatisticsEntry* e = statistics.find(m.name);
    if (e == nullptr && parsed && m.stacked) {
      const NamingRule& naming = *parsed->naming;
      e = statistics.find(fmt::format("{}.0.{}", parsed->block,
                                      parsed->projection == Projection::kDown ? naming.down : naming.gate));
    }
    if (m.is_table) continue;
    ++found.linears;
    if (e == nullptr) {
      if (found.missing.size() < kShownMissing) found.missing.push_back(m.name);
      continue;
    }
    if (e->count == 0) {
      ++found.without_tokens;
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
  const std::string own = final_norm_hash(checkpoint), theirs = statistics.metadata("weights");
  found.knows_weights = !own.empty() && !theirs.empty();
  found.same_weights = own == theirs;
  return found;
}

}  // namespace twofour
