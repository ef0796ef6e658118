#include <fmt/format.h>

#include <array>

#include "formats/e2m1.h"
#include "kernels/numbers/casts.h"
#include "kernels/numbers/quantize_mx.h"
#include "lib/write/transform/encoder.h"
#include "lib/write/transform/finite_weights.h"

namespace twofour {
namespace {

/// Codes of E2M1 as codes of E2M3, which has all of its numbers.
void widen_codes(std::span<const uint8_t> pairs, std::vector<uint8_t>& sixes) {
  static const auto table = [] {
    std::array<uint8_t, 16> all{};
    for (unsigned code = 0; code < all.size(); ++code)
      all[code] = static_cast<uint8_t>(code_from_float(kE2m3Grid, e2m1_to_float(code)));
    return all;
  }();
  std::vector<uint8_t> each(2 * pairs.size());
  for (size_t i = 0; i < each.size(); ++i) each[i] = table[pairs[i / 2] >> i % 2 * 4 & 15u];
  sixes.resize(pairs.size() / 2 * 3);
  pack_codes(kE2m3Grid, each, sixes.data());
}

}  // namespace

void Encoder::encode_mx(const EncodedMatrix& m, const Survey& survey, int64_t row,
                        std::span<const float> rows, const Write& write, EncodedResult& result) {
  const MxRule rule{quantize_.arithmetic, quantize_.weight_type};
  const WeightFormat format = rule_.scheme.format;
  codes_.resize(static_cast<size_t>(format->code_bytes(static_cast<int64_t>(rows.size()))));
  scales_.resize(rows.size() / kMxGroup);
  back_.resize(rows.size());
  const bool solved = is_solved(m, survey);
  const std::span<const float> target = solved ? target_of(m, row, rows) : rows;
  const auto decode = [&] { dequantize_mx(format, codes_, scales_, back_.data(), isa_); };
  if (!solved || rule_.settings->measures_rounding) {
    quantize_mx(format, rule, rows, codes_.data(), scales_.data(), isa_);
    decode();
  }
  if (solved) {
    const std::array<float, kMxGroup> zeros{};
    std::array<uint8_t, kMxGroup> codes{};
    uint8_t zero_scale = 0;
    quantize_mx(format, rule, zeros, codes.data(), &zero_scale, isa_);
    solve_rounded(rows, target, zero_scale, {}, decode, result);
  }
  // Scales are rounded to powers of two, so the largest weights may become even larger.
  if (!(largest_magnitude(back_, isa_) < kBeyondBf16) && result.problems.empty()) {
    result.problems.push_back(fmt::format("{}: expected weights that stay within BF16 in {}, found up to {}",
                                          source_.where(m.source->weight), encoded_name(rule_),
                                          largest_magnitude(rows, isa_)));
  }
  write(m.part(EncodedPart::kValues), codes_);
  write(m.part(EncodedPart::kScales), scales_);
  result.error.add(rows, back_, m.k, isa_);
  if (!solved) result.lost += count_lost_mx(rule, rows, back_);
}

void Encoder::cast_to_mx(const Write& write) {
  for_each_stored_block([&](size_t i, int64_t, const StoredBlock& block) {
    const EncodedMatrix& m = group_->matrices()[i];
    if (rule_.scheme.format->sixes) {
      widen_codes(block.values, codes_);
      write(m.part(EncodedPart::kValues), codes_);
    } else if (rule_.scheme.is_mxfp8()) {
      codes_.resize(2 * block.values.size());
      shifts_.assign(block.scales.size(), Mxfp4Shift::byte_of(0));
      cast_mxfp4_codes(block.values, shifts_.data(), codes_.data(), isa_);
      write(m.part(EncodedPart::kValues), codes_);
    } else {
      write(m.part(EncodedPart::kValues), block.values);
    }
    write(m.part(EncodedPart::kScales), block.scales);
  });
}

}  // namespace twofour
