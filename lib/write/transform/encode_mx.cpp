#include <fmt/format.h>

#include "kernels/numbers/casts.h"
#include "kernels/numbers/quantize_mx.h"
#include "lib/write/transform/encoder.h"
#include "lib/write/transform/finite_weights.h"

namespace twofour {

void Encoder::encode_mx(const EncodedMatrix& m, std::span<const float> rows, const Write& write,
                        EncodedResult& result) {
  const MxRule rule{quantize_.arithmetic, quantize_.weight_type};
  const bool mxfp8 = rule_.scheme.is_mxfp8();
  codes_.resize(mxfp8 ? rows.size() : rows.size() / 2);
  scales_.resize(rows.size() / kMxGroup);
  back_.resize(rows.size());
  if (mxfp8) {
    quantize_mxfp8(rule, rows, codes_.data(), scales_.data(), isa_);
    dequantize_mxfp8(codes_, scales_, back_.data(), isa_);
  } else {
    quantize_mxfp4(rule, rows, codes_.data(), scales_.data(), isa_);
    dequantize_mxfp4(codes_, scales_, back_.data(), isa_);
  }
  // Scales are rounded to powers of two, so the largest weights may become even larger.
  if (!(largest_magnitude(back_, isa_) < kBeyondBf16) && result.problems.empty()) {
    result.problems.push_back(fmt::format("{}: expected weights that stay within BF16 in {}, found up to {}",
                                          source_.where(m.source->weight), mxfp8 ? "MXFP8" : "MXFP4",
                                          largest_magnitude(rows, isa_)));
  }
  write(m.part(EncodedPart::kValues), codes_);
  write(m.part(EncodedPart::kScales), scales_);
  result.error.add(rows, back_, m.k, isa_);
  result.lost += count_lost_mx(rule, rows, back_);
}

void Encoder::cast_to_mx(const Write& write) {
  for_each_stored_block([&](size_t i, int64_t, const StoredBlock& block) {
    const EncodedMatrix& m = group_->matrices()[i];
    if (rule_.scheme.is_mxfp8()) {
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
