#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/numbers/quantize_mx.h"
#include "kernels/pack/prune.h"
#include "lib/write/transform/encoder.h"

namespace twofour {
namespace {

constexpr int kLowestCast = -9;  ///< exponent of the least power of two among block scales

/// Sets codes that a mask drops to zero.
void drop_codes(std::span<const uint8_t> mask, std::span<uint8_t> codes) {
  for (size_t i = 0; i < codes.size(); ++i)
    codes[i] &= static_cast<uint8_t>((mask[2 * i] != 0 ? 0x0F : 0) | (mask[2 * i + 1] != 0 ? 0xF0 : 0));
}

}  // namespace

bool Encoder::can_cast_to_nvfp4(Results& results) const {
  if (range_.is_exact()) return true;
  const std::string& name = group_->matrices()[0].name;
  const std::string span = fmt::format("scales from 2^{} to 2^{}", range_.low, range_.high);
  if (rule_.is_strict()) {
    results[0].problems.push_back(fmt::format(
        "{}: expected scales that span at most 2^17, which NVFP4 stores without loss ({}), found {}", name,
        rule_.settings->name(keys::kExact, "strict"), span));
    return false;
  }
  results[0].findings.push_back(
      {Severity::kWarning, "mxfp4-not-exact", name,
       fmt::format("{} span more than NVFP4 stores without loss: blocks below 2^{} are rounded", span,
                   range_.exponent() + kLowestCast)});
  return true;
}

void Encoder::choose_global_scales(Results& results) {
  float amax = 0;
  for (const Survey& s : surveys_) amax = std::max(amax, s.amax);
  const MatrixScale shared = shared_scale(rule_, quantize_, amax);
  bool is_used = false;
  for (size_t at = 0; at < surveys_.size(); ++at) {
    const EncodedMatrix& m = group_->matrices()[at];
    const auto kept = kept_scale(rule_, quantize_, group_->kept(), m.name);
    surveys_[at].scale = kept.value_or(shared);
    is_used = is_used || !kept;
  }
  if (is_used) check_global_scale(group_->matrices()[0].name, amax, shared, results[0]);
}

void Encoder::check_global_scale(const std::string& name, float amax, const MatrixScale& scale,
                                 EncodedResult& result) const {
  const float multiplier = rule_.divides ? 1.0f / scale.written : scale.written;
  if (!(multiplier > 0) || !std::isfinite(multiplier) || !std::isfinite(scale.written)) {
    result.problems.push_back(fmt::format(
        "{}: expected weights with a global scale that fits float32, found none above {}", name, amax));
  }
  if (amax == 0) {
    result.findings.push_back({Severity::kWarning, "zero-weights", name,
                               "all weights that share the global scale are zero: codes and block scales are "
                               "0, the global scale 1"});
  } else if (group_->matrices()[0].solving.method != Solving::Method::kPlain &&
             !is_solvable(reads(), scale.written)) {
    result.findings.push_back(
        {Severity::kWarning, "not-solved", name,
         fmt::format(
             "weights up to {} have a global scale with subnormal steps: they are chosen without statistics",
             amax)});
  } else if (is_overflow(quantize_, scale)) {
    result.findings.push_back(
        {Severity::kWarning, "global-scale-overflow", name,
         fmt::format("the global scale of weights up to {} is beyond {}: 1 is stored, as compressed-tensors "
                     "does, and little is left of the weights",
                     amax, dtype_name(quantize_.weight_type))});
  }
}

bool Encoder::is_solved(const EncodedMatrix& m, const MatrixScale& scale) const {
  return m.solving.method != Solving::Method::kPlain && !scale.is_zero && is_solvable(reads(), scale.written);
}

std::span<const float> Encoder::target_of(const EncodedMatrix& m, int64_t row, std::span<const float> rows) {
  solver_.begin(rule_, m);
  if (!solver_.has_target()) return rows;
  aimed_.assign(rows.begin(), rows.end());
  solver_.aim(row, aimed_);
  return aimed_;
}

std::span<const uint8_t> Encoder::mask_of(const EncodedMatrix& m, int64_t row, size_t count) {
  if (!m.mask) return {};
  mask_.resize(count);
  rule_.masks->read(*m.mask, row, mask_);
  return mask_;
}

/// Allocates buffers for rows with `weights` weights in total. Returns the arithmetic for them.
QuantizeRule Encoder::begin_rows(const Survey& survey, size_t weights) {
  QuantizeRule rule = quantize_;
  rule.zero_block = survey.scale.zero_block;
  codes_.resize(weights / 2);
  scales_.resize(weights / kGroup);
  back_.resize(weights);
  return rule;
}

/// Writes `codes_` and block scales. Adds the error of the values that readers decode from them.
void Encoder::write_codes(const EncodedMatrix& m, const Survey& survey, std::span<const float> rows,
                          std::span<const uint8_t> scales, const Write& write, EncodedResult& result) {
  write(m.part(EncodedPart::kValues), codes_);
  write(m.part(EncodedPart::kScales), scales);
  dequantize_nvfp4(reads(), survey.scale.written, codes_.data(), scales.data(), back_, isa_);
  result.error.add(rows, back_, m.k, isa_);
}

void Encoder::encode_masked(const EncodedMatrix& m, const Survey& survey, int64_t row,
                            std::span<const float> rows, const StoredBlock& stored, const Write& write,
                            EncodedResult& result) {
  const auto mask = mask_of(m, row, rows.size());
  codes_.assign(stored.values.begin(), stored.values.end());
  drop_codes(mask, codes_);
  back_.resize(rows.size());
  write_codes(m, survey, rows, stored.scales, write, result);
}

void Encoder::encode_solved(const EncodedMatrix& m, const Survey& survey, int64_t row,
                            std::span<const float> rows, const Write& write, EncodedResult& result) {
  const QuantizeRule rule = begin_rows(survey, rows.size());
  const std::span<const float> target = target_of(m, row, rows);
  solver_.solve(reads(), survey.scale.written, zero_scale_of(rule, survey.scale.global), target,
                mask_of(m, row, rows.size()), codes_.data(), scales_.data());
  write_codes(m, survey, rows, scales_, write, result);
  solver_.add_loss(rows, back_, result.output);
  if (kept_ != nullptr) kept_->compare(m.name, row, m.k, codes_, scales_, result.kept);
  if (rule_.settings->measures_rounding) add_rounding(m, survey, row, rows, target, result.output);
}

void Encoder::add_rounding(const EncodedMatrix& m, const Survey& survey, int64_t row,
                           std::span<const float> rows, std::span<const float> target, OutputLoss& to) {
  OutputLoss chosen, rounded;
  solver_.add_loss(target, back_, chosen);
  if (rule_.pattern.has_value() && *rule_.pattern != PrunePattern::k2of4) return;
  const QuantizeRule rule = begin_rows(survey, rows.size());
  const auto mask = mask_of(m, row, rows.size());
  pruned_.assign(rows.begin(), rows.end());
  if (rule_.pattern.has_value() && mask.empty()) prune_2_4(pruned_, isa_);
  for (size_t i = 0; i < mask.size(); ++i) pruned_[i] = mask[i] != 0 ? pruned_[i] : 0.0f;
  quantize_nvfp4(rule, survey.scale.global, pruned_, codes_.data(), scales_.data(), isa_);
  dequantize_nvfp4(reads(), survey.scale.written, codes_.data(), scales_.data(), back_, isa_);
  solver_.add_loss(target, back_, rounded);
  to.target_loss += chosen.loss;
  to.rounded_loss += rounded.loss;
}

void Encoder::encode_nvfp4(const EncodedMatrix& m, const Survey& survey, int64_t row,
                           std::span<const float> rows, const Write& write, EncodedResult& result) {
  if (is_solved(m, survey.scale)) return encode_solved(m, survey, row, rows, write, result);
  const QuantizeRule rule = begin_rows(survey, rows.size());
  std::span<const float> weights = rows;
  if (rule_.prunes_weights(m)) {
    const auto mask = mask_of(m, row, rows.size());
    // Adds the error of quantizing first and pruning afterwards.
    quantize_nvfp4(rule, survey.scale.global, rows, codes_.data(), scales_.data(), isa_);
    const CodeBlocks blocks{codes_.data(), scales_.data(), static_cast<int64_t>(scales_.size()), 1};
    if (mask.empty()) {
      prune_codes(PrunePattern::k2of4, blocks, codes_.data(), isa_);
    } else {
      drop_codes(mask, codes_);
    }
    dequantize_nvfp4(reads(), survey.scale.written, codes_.data(), scales_.data(), back_, isa_);
    result.pruned_after.add(rows, back_, m.k, isa_);
    pruned_.assign(rows.begin(), rows.end());
    if (mask.empty()) prune_2_4(pruned_, isa_);
    for (size_t i = 0; i < mask.size(); ++i) pruned_[i] = mask[i] != 0 ? pruned_[i] : 0.0f;
    weights = pruned_;
  }
  quantize_nvfp4(rule, survey.scale.global, weights, codes_.data(), scales_.data(), isa_);
  if (survey.scale.is_kept) restore_negative_zeros(weights, codes_);
  write_codes(m, survey, rows, scales_, write, result);
  if (kept_ != nullptr) kept_->compare(m.name, row, m.k, codes_, scales_, result.kept);
}

void Encoder::cast_to_nvfp4(const Write& write, Results& results) {
  const float scale = std::ldexp(1.0f, range_.exponent());
  for (Survey& s : surveys_) s.scale.written = rule_.divides ? 1.0f / scale : scale;
  for_each_stored_block([&](size_t i, int64_t, const StoredBlock& block) {
    const EncodedMatrix& m = group_->matrices()[i];
    scales_.resize(2 * block.scales.size());
    cast_mxfp4_scales(block.scales, range_.exponent(), scales_.data());
    if (range_.is_exact()) {
      write(m.part(EncodedPart::kValues), block.values);
    } else {
      codes_.assign(block.values.begin(), block.values.end());
      const int64_t rounded = round_small_mxfp4_blocks(block.scales, range_.exponent(), codes_.data());
      results[i].tiles.count += block.scales.size();
      results[i].tiles.inexact += static_cast<uint64_t>(rounded);
      if (rounded > 0) add_rounded_blocks(m, block, results[i]);
      write(m.part(EncodedPart::kValues), codes_);
    }
    write(m.part(EncodedPart::kScales), scales_);
  });
}

void Encoder::add_rounded_blocks(const EncodedMatrix& m, const StoredBlock& block, EncodedResult& result) {
  const auto k = static_cast<size_t>(m.k), blocks = k / kMxGroup;
  const float written = surveys_[0].scale.written;
  rows_.resize(std::max(rows_.size(), k));
  back_.resize(k);
  const std::span weights = std::span(rows_).first(k);
  for (size_t at = 0; at < block.scales.size(); at += blocks) {
    dequantize_mxfp4(block.values.subspan(at * kMxGroup / 2, k / 2), block.scales.subspan(at, blocks),
                     rows_.data(), isa_);
    dequantize_nvfp4(reads(), written, &codes_[at * kMxGroup / 2], &scales_[2 * at], back_, isa_);
    result.error.error += quantize_error_of(weights, back_, isa_).errors_squared;
  }
}

namespace {

bool divides(Arithmetic arithmetic) { return arithmetic == Arithmetic::compressed_tensors; }

}  // namespace

QuantizeRule quantize_rule(const EncodeRule& rule) {
  const Rule& settings = *rule.settings;
  return {settings.arithmetic.or_default(), settings.block_scale.or_default(),
          settings.zero_block.or_default(), rule.weight_type};
}

MatrixScale shared_scale(const EncodeRule& rule, const QuantizeRule& quantize, float amax) {
  if (amax == 0) return {{1, 1}, 1, ZeroBlock::zero, false, true};
  const GlobalScale global = global_scale_of(quantize, amax);
  const bool same = divides(quantize.arithmetic) == rule.divides;
  return {global, same ? global.stored : 1.0f / global.stored, quantize.zero_block};
}

std::optional<MatrixScale> kept_scale(const EncodeRule& rule, const QuantizeRule& quantize,
                                      const FixedGlobalScales& kept, const std::string& name) {
  const FixedGlobalScales::Scale* found = kept.find(name);
  if (found == nullptr) return std::nullopt;
  const auto stored = std::bit_cast<float>(found->bits);
  const float own = kept.divides == divides(quantize.arithmetic) ? stored : 1.0f / stored;
  return MatrixScale{global_scale_from(quantize, own), kept.divides == rule.divides ? stored : 1.0f / stored,
                     quantize.zero_block, true};
}

void restore_negative_zeros(std::span<const float> weights, std::span<uint8_t> codes) {
  constexpr uint32_t kNegativeZero = 0x80000000u;
  for (size_t i = 0; i < codes.size(); ++i) {
    const unsigned low = std::bit_cast<uint32_t>(weights[2 * i]) == kNegativeZero ? 0x08 : 0;
    const unsigned high = std::bit_cast<uint32_t>(weights[2 * i + 1]) == kNegativeZero ? 0x80 : 0;
    codes[i] |= static_cast<uint8_t>(low | high);
  }
}

bool is_overflow(const QuantizeRule& quantize, const MatrixScale& scale) {
  // The correct global scale is 1 for magnitudes of 2688 or 1536.
  return divides(quantize.arithmetic) && scale.global.stored == 1 && scale.global.amax < 1024 &&
         scale.zero_block == quantize.zero_block;
}

}  // namespace twofour
