#include "lib/transform/encode_scale.h"

#include <algorithm>
#include <bit>

namespace twofour {
namespace {

bool divides(Arithmetic arithmetic) { return arithmetic == Arithmetic::compressed_tensors; }

}  // namespace

QuantizeRule quantize_rule(const EncodeRule& rule) {
  const Rule& words = *rule.words;
  return {words.arithmetic.or_default(), words.block_scale.or_default(), words.zero_block.or_default(),
          rule.weight_type};
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
  // 1 is right for magnitudes of 2688 or 1536.
  return divides(quantize.arithmetic) && scale.global.stored == 1 && scale.global.amax < 1024 &&
         scale.zero_block == quantize.zero_block;
}

}  // namespace twofour
