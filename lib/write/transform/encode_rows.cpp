#include <algorithm>

#include "kernels/numbers/casts.h"
#include "kernels/pack/prune.h"
#include "lib/base/findings/problems.h"
#include "lib/base/threads/interrupt.h"
#include "lib/write/transform/encoder.h"

namespace twofour {
namespace {

/// The range of rows of a module that contains the given rows of a matrix.
std::pair<int64_t, int64_t> module_rows(const EncodedMatrix& m, const RowRange& rows) {
  return {m.first + rows.begin * m.step, m.first + (rows.end - 1) * m.step + 1};
}

/// Selects inputs of rows of a matrix from `all`. `all` has whole rows of the module, from the first needed
/// row on. An item stands for `per_item` weights.
template <class T>
std::span<T> gather(const EncodedMatrix& m, const RowRange& rows, std::span<const T> all, int64_t per_item,
                    std::vector<T>& to) {
  const int64_t pitch = m.k / per_item, width = (rows.k1 - rows.k0) / per_item;
  to.resize(static_cast<size_t>((rows.end - rows.begin) * width));
  for (int64_t r = 0; r < rows.end - rows.begin; ++r) {
    std::copy_n(all.begin() + r * m.step * pitch + rows.k0 / per_item, width, to.begin() + r * width);
  }
  return to;
}

}  // namespace

QuantizedRows Encoder::quantize(const QuantizedGroup& group) {
  QuantizedRows rows;
  rows.parts.resize(group.part_count());
  for (size_t p = 0; p < rows.parts.size(); ++p)
    rows.parts[p].reserve(group.part_info(static_cast<int>(p)).bytes());
  rows.results = encode(group, [&](int part, std::span<const uint8_t> bytes) {
    auto& to = rows.parts[static_cast<size_t>(part)];
    to.insert(to.end(), bytes.begin(), bytes.end());
  });
  std::vector<std::string> lines;
  for (const EncodedResult& r : rows.results) lines.insert(lines.end(), r.problems.begin(), r.problems.end());
  if (!lines.empty()) throw ErrorLines(std::move(lines));
  return rows;
}

void Encoder::rewrite(const TensorRewrite& tensor, uint64_t begin, std::span<uint8_t> out) {
  RangeResult result;
  tensor.make(source_, begin, out, result);
}

void Encoder::quantize(const QuantizedGroup& group, const GroupScale& scale, size_t matrix,
                       const RowRange& rows, std::span<uint8_t> codes, std::span<uint8_t> scales) {
  const EncodedMatrix& m = group.matrices()[matrix];
  const int64_t step = std::max<int64_t>(1, group.strip_rows(*m.source) / m.step);
  const int64_t inputs = rows.k1 - rows.k0;
  for (int64_t row = rows.begin; row < rows.end; row += step) {
    check_interrupt();
    const RowRange some{row, std::min(row + step, rows.end), rows.k0, rows.k1};
    const auto part = [&](std::span<uint8_t> of, int64_t per_byte) {
      const int64_t width = inputs / per_byte;
      return of.subspan(static_cast<size_t>((row - rows.begin) * width),
                        static_cast<size_t>((some.end - row) * width));
    };
    if (scale.exponent) {
      cast_rows(m, *scale.exponent, some, part(codes, 2), part(scales, kGroup));
    } else {
      quantize_rows(group.encode_rule(), scale, m, some, part(codes, 2), part(scales, kGroup));
    }
  }
}

/// Reads weights, [rows, k1 - k0].
std::span<const float> Encoder::read_inputs(const EncodedMatrix& m, const RowRange& rows) {
  const Linear& from = *m.source;
  const bool is_part = rows.k1 - rows.k0 < m.k;
  if (is_part && !from.format->coded && !from.k_outer) return read_floats(m, rows);
  const auto [begin, end] = module_rows(m, rows);
  const std::span<const float> all = read(from, m.expert, begin, end);
  if (m.step == 1 && !is_part) return all;
  return gather<float>(m, rows, all, 1, gathered_);
}

/// Reads some inputs of rows that are stored as floats. The other inputs are not read.
std::span<const float> Encoder::read_floats(const EncodedMatrix& m, const RowRange& rows) {
  const DType type = source_.tensors()[m.source->weight].dtype;
  const auto width = static_cast<int64_t>(dtype_bits(type)) / 8, inputs = rows.k1 - rows.k0;
  gathered_.resize(static_cast<size_t>((rows.end - rows.begin) * inputs));
  codes_.resize(static_cast<size_t>(inputs * width));
  for (int64_t r = 0; r < rows.end - rows.begin; ++r) {
    const int64_t row = m.expert * m.source->n + m.first + (rows.begin + r) * m.step;
    source_.read(m.source->weight, static_cast<uint64_t>((row * m.k + rows.k0) * width), codes_);
    widen(type, codes_.data(),
          std::span(gathered_).subspan(static_cast<size_t>(r * inputs), static_cast<size_t>(inputs)), isa_);
  }
  return gathered_;
}

void Encoder::quantize_rows(const EncodeRule& encode_rule, const GroupScale& shared, const EncodedMatrix& m,
                            const RowRange& rows, std::span<uint8_t> codes, std::span<uint8_t> scales) {
  QuantizeRule rule = quantize_rule(encode_rule);
  const MatrixScale scale = shared_scale(encode_rule, rule, shared.amax);
  rule.zero_block = scale.zero_block;
  std::span<const float> weights = read_inputs(m, rows);
  if (encode_rule.prune) {
    pruned_.assign(weights.begin(), weights.end());
    prune_2_4(pruned_, isa_);
    weights = pruned_;
  }
  quantize_nvfp4(rule, scale.global, weights, codes.data(), scales.data(), isa_);
}

void Encoder::cast_rows(const EncodedMatrix& m, int exponent, const RowRange& rows, std::span<uint8_t> codes,
                        std::span<uint8_t> scales) {
  const auto [begin, end] = module_rows(m, rows);
  held_ = {};  // from here on the reader has other rows
  const StoredRows stored = reader_.read_stored(*m.source, m.expert, begin, end);
  const auto own = gather<uint8_t>(m, rows, stored.weights, 2, gathered_values_);
  std::copy(own.begin(), own.end(), codes.begin());
  const auto powers = gather<uint8_t>(m, rows, stored.scales, kMxGroup, gathered_scales_);
  cast_mxfp4_scales(powers, exponent, scales.data());
  round_small_mxfp4_blocks(powers, exponent, codes.data());
}

}  // namespace twofour
