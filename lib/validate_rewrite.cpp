#include "lib/validate_rewrite.h"

#include <fmt/format.h>

#include <algorithm>

#include "lib/derive.h"
#include "lib/threads/interrupt.h"
#include "lib/rederive_rewrite.h"

namespace twofour {
namespace {

/// What deriving one tensor again showed.
struct Check {
  uint64_t wrong = 0, first = 0;
  uint8_t expected = 0, found = 0;
  uint64_t zeros = 0;             ///< kPrune
  std::vector<PruneStats> stats;  ///< kPrune: one an expert
};

/// Compares bytes [begin, begin + found.size()).
void check_range(const SlowDeriver& slow, const OutputTensor& t, uint64_t begin,
                 std::span<const uint8_t> found, Check& check) {
  const auto count = static_cast<int64_t>(found.size());
  uint64_t wrong = 0, zeros = 0;
#pragma omp parallel
  {
    std::vector<PruneStats> stats(check.stats.size());
#pragma omp for schedule(static) reduction(+ : wrong, zeros)
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t at = begin + static_cast<uint64_t>(i);
      wrong += slow.byte_at(at) != found[static_cast<size_t>(i)];
      if (t.op != Op::kPrune) continue;
      zeros += slow.zeros_at(at);
      stats[slow.expert_at(at)] += slow.stats_at(at);
    }
#pragma omp critical
    for (size_t e = 0; e < stats.size(); ++e) check.stats[e] += stats[e];
  }
  check.zeros += zeros;
  for (int64_t i = 0; wrong > 0 && check.wrong == 0 && i < count; ++i) {
    const uint64_t at = begin + static_cast<uint64_t>(i);
    const uint8_t expected = slow.byte_at(at), byte = found[static_cast<size_t>(i)];
    if (expected == byte) continue;
    check.first = at;
    check.expected = expected;
    check.found = byte;
    break;
  }
  check.wrong += wrong;
}

WeightReport weight_report(const Checkpoint& source, const ModulePlan& plan, const Check& check) {
  const Nvfp4Module& m = source.nvfp4_modules()[plan.module];
  WeightReport weights{m.name, {m.e, m.n, m.k}, {}, 0};
  for (size_t e = 0; e < check.stats.size(); ++e) weights.quality.add(check.stats[e], plan.multipliers[e]);
  weights.zero_share = static_cast<double>(check.zeros) / static_cast<double>(m.e * m.n * m.k);
  return weights;
}

}  // namespace

void check_rewritten(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                     Progress& progress, ValidateReport& report) {
  std::vector<uint8_t> buffer;
  for (const OutputTensor& t : plan.tensors) {
    if (t.kind != OutputTensor::Kind::kDerived) continue;
    SlowDeriver slow(source, plan, t);
    Check check;
    if (t.op == Op::kPrune) check.stats.resize(plan.modules[t.module].multipliers.size());
    const size_t ours = *artifact.find(t.info.name);
    const uint64_t step = derive_step(source, plan, t);
    for (uint64_t at = 0; at < t.info.bytes(); at += step) {
      check_interrupt();
      buffer.resize(std::min(step, t.info.bytes() - at));
      artifact.read(ours, at, buffer);
      slow.load(at, at + buffer.size());
      check_range(slow, t, at, buffer, check);
      progress.done += 2 * buffer.size();
    }
    if (check.wrong > 0) {
      report.differences.push_back(
          {Severity::kError, "bytes", t.info.name,
           fmt::format("{} bytes differ from what the source derives to, the first at {}: expected 0x{:02X}, "
                       "found 0x{:02X}",
                       check.wrong, check.first, check.expected, check.found)});
    }
    if (t.op == Op::kPrune) report.weights.push_back(weight_report(source, plan.modules[t.module], check));
  }
}

}  // namespace twofour
