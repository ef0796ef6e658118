#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "lib/base/threads/interrupt.h"
#include "lib/prove/validate/proof.h"
#include "lib/write/methods/module_rewrite.h"
#include "lib/write/plan/tensor_rewrite.h"

namespace twofour {
namespace {

/// Figures of pruning a tensor, derived by the slow path.
struct PrunedFigures {
  uint64_t zeros = 0;
  std::vector<PruneStats> stats;  ///< one for each expert
};

/// Compares a part with its expected bytes, in ranges that fit into the promised memory. Returns the hash of
/// the source of all ranges.
std::string hold_part(Proof& proof, int part, const TensorRewrite& rewrite,
                      PrunedFigures* figures = nullptr) {
  const std::unique_ptr<ExpectedRange> range = rewrite.expect(proof.source);
  const uint64_t bytes = proof.info(part).bytes(), step = rewrite.step();
  std::vector<uint8_t> expected;
  for (uint64_t at = 0; at < bytes; at += step) {
    check_interrupt();
    expected.resize(std::min(step, bytes - at));
    range->load(at, at + expected.size());
    const auto count = static_cast<int64_t>(expected.size());
    uint64_t zeros = 0;
#pragma omp parallel
    {
      std::vector<PruneStats> stats(figures != nullptr ? figures->stats.size() : 0);
#pragma omp for schedule(static) reduction(+ : zeros)
      for (int64_t i = 0; i < count; ++i) {
        const uint64_t place = at + static_cast<uint64_t>(i);
        expected[static_cast<size_t>(i)] = range->byte_at(place);
        if (figures == nullptr) continue;
        zeros += range->zeros_at(place);
        stats[range->expert_at(place)] += range->stats_at(place);
      }
#pragma omp critical
      for (size_t e = 0; e < stats.size(); ++e) figures->stats[e] += stats[e];
    }
    if (figures != nullptr) figures->zeros += zeros;
    proof.hold(part, at, expected);
  }
  return range->source_hash();
}

/// Compares a copied part, without a loop over its bytes.
void hold_copy(Proof& proof, int part, size_t tensor) {
  std::vector<uint8_t> expected;
  const uint64_t bytes = proof.info(part).bytes();
  for (uint64_t at = 0; at < bytes; at += kRewriteStep) {
    expected.resize(std::min(kRewriteStep, bytes - at));
    proof.source.read(tensor, at, expected);
    proof.hold(part, at, expected);
  }
}

}  // namespace

Json LinearRewrite::prove(Proof& proof) const {
  Json result = nullptr;
  for (size_t p = 0; p < parts().size(); ++p) {
    const std::string hash = hold_part(proof, static_cast<int>(p), *parts()[p].rewrite);
    if (p == 0 && widens()) result = hash;
  }
  proof.finish();
  return result;
}

Json KeptTensor::prove(Proof& proof) const {
  if (cast_) {
    hold_part(proof, 0, cast_->rewrite);
  } else {
    hold_copy(proof, 0, tensor_);
  }
  proof.finish();
  return nullptr;
}

/// Checks that the input scale is the scale that the rule's settings give, or the source's scale if it stays.
void ModuleRewrite::prove_input_scale(Proof& proof) const {
  const ExpectedInputScales::Scale expected = proof.input_scales.of(*input_scale_.rule, module_.name);
  const bool has = input_scale_part_ >= 0, own = expected.is_own;
  const bool wants = own ? module_.input_scale.has_value() : expected.multiplier > 0;
  if (has != wants || own != input_scale_.scale.is_own) {
    proof.differ("input-scale", module_.name,
                 fmt::format("expected {} by the rule's words, found {}",
                             !wants ? "no input scale"
                             : own  ? "the source's input scale"
                                    : fmt::format("an input scale of {}", expected.multiplier),
                             !has                        ? "none"
                             : input_scale_.scale.is_own ? "the source's"
                                                         : "another"));
  } else if (has && !own) {
    const bool divides = proof.info(input_scale_part_).name.ends_with("_global_scale");
    const float value = divides ? 1.0f / expected.multiplier : expected.multiplier;
    std::vector<uint8_t> bytes(sizeof(value));
    std::memcpy(bytes.data(), &value, sizeof(value));
    proof.hold(input_scale_part_, 0, bytes);
  }
}

Json ModuleRewrite::prove(Proof& proof) const {
  PrunedFigures figures;
  figures.stats.resize(scales_.multipliers.size());
  if (input_scale_.rule) prove_input_scale(proof);
  for (size_t p = 0; p < parts().size(); ++p) {
    if (static_cast<int>(p) == input_scale_part_ && !input_scale_.scale.is_own) continue;
    hold_part(proof, static_cast<int>(p), *parts()[p].rewrite, prunes_ && p == 0 ? &figures : nullptr);
  }
  proof.finish();
  Json result = Json::object();
  if (prunes_) {
    const Nvfp4Linear& m = module_;
    WeightReport weights{m.name, {m.e, m.n, m.k}, {}, 0};
    for (size_t e = 0; e < figures.stats.size(); ++e) {
      weights.quality.add(figures.stats[e], scales_.multipliers[e]);
    }
    weights.zero_share = static_cast<double>(figures.zeros) / static_cast<double>(m.e * m.n * m.k);
    result["quality"] = to_json(weights.quality);
    proof.add(std::move(weights));
  }
  // Tensors that were converted are recorded by their hashes.
  const auto hash = [&](const char* key, size_t tensor) {
    if (passes(tensor)) return;
    result[key] = hash_range_of(proof, tensor, 0, proof.source.tensors()[tensor].bytes()).hex();
  };
  hash("codes", module_.codes);
  hash("scales", module_.block_scale);
  return result.empty() ? Json(nullptr) : result;
}

}  // namespace twofour
