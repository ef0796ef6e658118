#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "formats/atom.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/error.h"
#include "formats/half.h"
#include "kernels/device/check.h"
#include "kernels/numbers/casts.h"
#include "kernels/numbers/quantize_mx.h"
#include "lib/base/findings/options.h"
#include "lib/source/linears/linears.h"

namespace twofour {

namespace {

template <class F>
constexpr std::array<float, 256> table_of(F value) {
  std::array<float, 256> table{};
  for (unsigned byte = 0; byte < 256; ++byte) table[byte] = value(byte);
  return table;
}

constexpr auto kE8m0 = table_of([](unsigned byte) { return e8m0_to_float(byte); });

/// Transposes a matrix [rows, cols] to [cols, rows], in tiles that fit the L1 cache.
template <class T>
void transpose(const uint8_t* in, int64_t rows, int64_t cols, uint8_t* out) {
  constexpr int64_t kTile = 64;
  for (int64_t r0 = 0; r0 < rows; r0 += kTile) {
    const int64_t r1 = std::min(rows, r0 + kTile);
    for (int64_t c0 = 0; c0 < cols; c0 += kTile) {
      const int64_t c1 = std::min(cols, c0 + kTile);
      for (int64_t c = c0; c < c1; ++c) {
        for (int64_t r = r0; r < r1; ++r) {
          std::memcpy(out + (c * rows + r) * int64_t{sizeof(T)}, in + (r * cols + c) * int64_t{sizeof(T)},
                      sizeof(T));
        }
      }
    }
  }
}

[[noreturn]] void fail(const std::string& where, const char* expected, const std::string& found,
                       const Linear& m, int64_t e, int64_t n, int64_t k) {
  throw Error(fmt::format("{}: expected {}, found {} at {}n {}, k {}", where, expected, found,
                          m.stacked ? fmt::format("expert {}, ", e) : "", n, k));
}

uint32_t setting_at(std::span<const uint8_t> bytes, int64_t i) {
  uint32_t word = 0;
  std::memcpy(&word, &bytes[static_cast<size_t>(i) * sizeof(word)], sizeof(word));
  return word;
}

/// Returns the bit offset of row n in the words that eight rows share.
int row_shift(const Linear& m, int64_t n) {
  constexpr int kAwqNibbles[kInt4Pack] = {0, 4, 1, 5, 2, 6, 3, 7};
  const int64_t place = n % kInt4Pack;
  return 4 * (m.packing == Int4Packing::kAwq ? kAwqNibbles[place] : static_cast<int>(place));
}

/// Splits each byte into two nibbles, the lower first.
void split_nibbles(const uint8_t* bytes, int64_t count, uint8_t* codes) {
  for (int64_t i = 0; i < count; ++i) {
    codes[2 * i] = bytes[i] & 15;
    codes[2 * i + 1] = bytes[i] >> 4;
  }
}

/// Takes the nibble at bit `shift` of each word.
void take_nibbles(const uint8_t* words, int64_t count, int shift, uint8_t* codes) {
  for (int64_t i = 0; i < count; ++i) {
    uint32_t word = 0;
    std::memcpy(&word, words + i * int64_t{sizeof(word)}, sizeof(word));
    codes[i] = static_cast<uint8_t>(word >> shift & 15);
  }
}

bool has_nan(std::span<const uint8_t> fp8) {
  int largest = 0;  // magnitudes sort as their bits do, and NaN is above all
  for (const uint8_t byte : fp8) largest = std::max(largest, byte & 0x7F);
  return largest == kE4m3Nan;
}

}  // namespace

void WeightReader::read_row_block(const RowBlock& s, std::vector<uint8_t>& to) {
  const auto count = s.end - s.begin;
  const auto size = static_cast<uint64_t>(s.bytes);
  to.resize(static_cast<size_t>(count * s.cols) * size);
  bytes_read_ += to.size();
  const auto matrix = static_cast<uint64_t>(s.e * s.rows * s.cols);
  if (!s.k_outer) {
    checkpoint_.read(s.tensor, (matrix + static_cast<uint64_t>(s.begin * s.cols)) * size, to);
    return;
  }
  turned_.resize(to.size());
  if (count == s.rows) {
    checkpoint_.read(s.tensor, matrix * size, turned_);
  } else {
    const size_t run = static_cast<size_t>(count) * size;
    for (int64_t c = 0; c < s.cols; ++c) {
      checkpoint_.read(s.tensor, (matrix + static_cast<uint64_t>(c * s.rows + s.begin)) * size,
                       std::span(turned_).subspan(static_cast<size_t>(c) * run, run));
    }
  }
  if (s.bytes == 1) transpose<uint8_t>(turned_.data(), s.cols, count, to.data());
  if (s.bytes == 2) transpose<uint16_t>(turned_.data(), s.cols, count, to.data());
  if (s.bytes == 4) transpose<uint32_t>(turned_.data(), s.cols, count, to.data());
}

void WeightReader::read_weights(const Linear& m, int64_t e, int64_t n0, int64_t n1) {
  if (m.format->integers) {
    // After the transposition, GPTQ's words are ordered as in compressed-tensors, and AWQ's are [N/8, K].
    const bool awq = m.packing == Int4Packing::kAwq;
    const int64_t per_row = awq ? kInt4Pack : 1;
    return read_row_block({m.weight, e, ceil_div(m.n, per_row), awq ? m.k : ceil_div(m.k, kInt4Pack),
                           int{sizeof(uint32_t)}, m.reads_across(), n0 / per_row, ceil_div(n1, per_row)},
                          weights_);
  }
  const bool packed = m.format->in_groups();
  const int bytes = packed ? 1 : dtype_bits(checkpoint_.tensors()[m.weight].dtype) / 8;
  const int64_t width = packed ? m.format->code_bytes(m.k) : m.k;
  read_row_block({m.weight, e, m.n, width, bytes, m.k_outer, n0, n1}, weights_);
}

void WeightReader::read_scales(const Linear& m, int64_t e, int64_t n0, int64_t n1) {
  const TensorInfo& t = checkpoint_.tensors()[*m.scale];
  const int bytes = dtype_bits(t.dtype) / 8;
  const bool shared = t.bytes() == static_cast<uint64_t>(bytes);  // all experts have one scale
  read_row_block({*m.scale, shared ? 0 : e, ceil_div(m.n, m.scale_rows), scale_columns(m), bytes,
                  m.reads_across(), n0 / m.scale_rows, ceil_div(n1, m.scale_rows)},
                 scales_);
}

StoredRows WeightReader::read_stored(const Linear& m, int64_t e, int64_t n0, int64_t n1) {
  check(e >= 0 && e < m.e && n0 >= 0 && n0 < n1 && n1 <= m.n, "rows of the module");
  read_weights(m, e, n0, n1);
  scales_.clear();
  if (m.scale) read_scales(m, e, n0, n1);
  return {weights_, scales_};
}

void WeightReader::read_rows(const Linear& m, int64_t e, int64_t n0, int64_t n1, std::span<float> out) {
  check(e >= 0 && e < m.e && n0 >= 0 && n0 <= n1 && n1 <= m.n, "rows of the module");
  check(out.size() == static_cast<size_t>((n1 - n0) * m.k), "memory for the rows");
  if (n0 == n1) return;
  if (m.format->in_groups()) return read_grouped(m, e, n0, n1, out);
  if (m.format->integers) return read_integers(m, n0, n1, out);
  if (m.format->tiles) return read_tiles(m, e, n0, n1, out);
  read_weights(m, e, n0, n1);
  widen(checkpoint_.tensors()[m.weight].dtype, weights_.data(), out);
}

int64_t WeightReader::scale_columns(const Linear& m) const {
  if (!m.format->integers) return ceil_div(m.k, m.scale_cols);
  const auto& shape = checkpoint_.tensors()[*m.scale].shape;  // with a g_idx, groups may differ in size
  return m.reads_across() ? shape[0] : shape[1];
}

std::vector<float> WeightReader::read_float_scales(const Linear& m, int64_t e, int64_t n0, int64_t n1) {
  const TensorInfo& t = checkpoint_.tensors()[*m.scale];
  const int bytes = dtype_bits(t.dtype) / 8;
  const int64_t first = n0 / m.scale_rows, cols = scale_columns(m);
  const bool is_signed = m.format->integers;
  read_scales(m, e, n0, n1);
  std::vector<float> scales(scales_.size() / static_cast<size_t>(bytes));
  if (bytes == 1) {
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = kE8m0[scales_[i]];
  } else {
    widen(t.dtype, scales_.data(), scales);
  }
  for (size_t i = 0; i < scales.size(); ++i) {
    if (std::isfinite(scales[i]) && (is_signed || scales[i] >= 0)) continue;
    const auto at = static_cast<int64_t>(i);
    fail(checkpoint_.where(*m.scale),
         is_signed ? "scales that are finite" : "scales that are finite and not negative",
         fmt::format("{}", scales[i]), m, e, (first + at / cols) * m.scale_rows, at % cols * m.scale_cols);
  }
  return scales;
}

void WeightReader::read_tiles(const Linear& m, int64_t e, int64_t n0, int64_t n1, std::span<float> out) {
  const std::vector<float> scales = read_float_scales(m, e, n0, n1);
  const int64_t cols = ceil_div(m.k, m.scale_cols);
  read_weights(m, e, n0, n1);
  const auto number = m.format->number;
  const auto is_nan = [&](uint8_t byte) { return std::isnan(m.format->value_of(byte)); };
  if (number ? std::any_of(weights_.begin(), weights_.end(), is_nan) : has_nan(weights_)) {
    const auto bad = std::find_if(weights_.begin(), weights_.end(), is_nan);
    const int64_t at = bad - weights_.begin();
    fail(checkpoint_.where(m.weight), "weights that are numbers", fmt::format("NaN (0x{:02X})", *bad), m, e,
         n0 + at / m.k, at % m.k);
  }
  const Isa isa = best_isa();
  for (int64_t n = n0; n < n1; ++n) {
    const float* row_scales = scales.data() + (n / m.scale_rows - n0 / m.scale_rows) * cols;
    const uint8_t* from = weights_.data() + (n - n0) * m.k;
    float* to = out.data() + (n - n0) * m.k;
    for (int64_t b = 0; b < cols; ++b) {
      const float scale = row_scales[b];
      const int64_t end = std::min(m.k, (b + 1) * m.scale_cols);
      const int64_t begin = b * m.scale_cols;
      if (number) {
        std::transform(from + begin, from + end, to + begin,
                       [&](uint8_t byte) { return number(byte) * scale; });
      } else {
        decode_fp8({from + begin, static_cast<size_t>(end - begin)}, scale, to + begin, isa);
      }
    }
  }
  refuse_reciprocal(m, e, n0, scales, out);
}

void WeightReader::refuse_reciprocal(const Linear& m, int64_t e, int64_t n0, std::span<const float> scales,
                                     std::span<const float> weights) const {
  constexpr float kLargestE4m3 = 448;
  const float scale = *std::max_element(scales.begin(), scales.end());
  const bool is_power = dtype_bits(checkpoint_.tensors()[*m.scale].dtype) == 8;
  if (is_power || !(scale * kLargestE4m3 > kLargestWeight) || kLargestE4m3 / scale < kSmallestWeight) return;
  if (std::ranges::all_of(weights, [](float x) { return std::fabs(x) <= kLargestWeight; })) return;
  fail(
      checkpoint_.where(*m.scale), fmt::format("scales of weights up to {:g}", kLargestWeight).c_str(),
      fmt::format("{}, perhaps the reciprocal of one for weights up to {:.3g},", scale, kLargestE4m3 / scale),
      m, e, n0, 0);
}

void WeightReader::read_grouped(const Linear& m, int64_t e, int64_t n0, int64_t n1, std::span<float> out) {
  const bool nvfp4 = m.format->global_scale;
  const int64_t group = m.scale_cols, groups = m.k / group;
  const float global = nvfp4 ? read_global_scale(m, e) : 1.0f;
  read_weights(m, e, n0, n1);
  read_scales(m, e, n0, n1);
  const uint8_t last = nvfp4 ? 0x7E : 0xFE;  // greater bytes are negative numbers or NaN
  const auto bad = std::find_if(scales_.begin(), scales_.end(), [last](uint8_t s) { return s > last; });
  if (bad != scales_.end()) {
    const int64_t at = bad - scales_.begin();
    fail(checkpoint_.where(*m.scale),
         nvfp4 ? "block scales that are not negative and not NaN" : "block scales that are numbers",
         fmt::format("{} 0x{:02X}", nvfp4 ? "byte" : "NaN,", *bad), m, e, n0 + at / groups,
         at % groups * group);
  }
  if (m.format->sixes) {
    dequantize_mxfp6(weights_, scales_, out.data());
  } else if (nvfp4 && group != kGroup) {
    std::vector<uint8_t> repeated;
    repeated.reserve(scales_.size() * static_cast<size_t>(group / kGroup));
    for (const uint8_t scale : scales_)
      repeated.insert(repeated.end(), static_cast<size_t>(group / kGroup), scale);
    decode_nvfp4(weights_, repeated, global, out.data());
  } else if (nvfp4) {
    decode_nvfp4(weights_, scales_, global, out.data());
  } else {
    dequantize_mxfp4(weights_, scales_, out.data());
  }
}

void WeightReader::refuse_zero_point(const Linear& m, int stored, int64_t n, int64_t group) const {
  const std::string read =
      m.zero_offset == 0 ? fmt::format("{}", stored)
                         : fmt::format("{} (read as {} with checkpoint_format gptq, as {} with gptq_v2),",
                                       stored, stored + m.zero_offset, stored);
  throw Error(
      fmt::format("{}: expected zero points of 8{}, found {} at row {}, group {}; {} {} "
                  "decides",
                  checkpoint_.where(*m.zero_points),
                  m.lacks_config ? ", because no config states how others are stored"
                                 : fmt::format(" as the config's {} says", m.symmetry),
                  read, n, group, options::kZeroPoints,
                  m.zero_offset == 0 ? "stored or symmetric" : "stored, symmetric or v2"));
}

// Sources: GPTQModel, utils/model.py, convert_gptq_v2_to_v1_format_module and its inverse, which take 1 from
// all of a word and add it; AutoGPTQ 0.7.1, qlinear_cuda.py, and vLLM, csrc/quantization/gptq, which add 1 to
// each.
void WeightReader::refuse_wrapped_zero_point(const Linear& m, int64_t n, int64_t group) const {
  throw Error(
      fmt::format("{}: expected zero points of 0 to 14, to which checkpoint_format gptq adds 1, found 15 at "
                  "row {}, group {}, which AutoGPTQ and vLLM read as 16, and GPTQModel, which wrote it, as "
                  "0; {} stored, symmetric or v2 decides",
                  checkpoint_.where(*m.zero_points), n, group, options::kZeroPoints));
}

std::vector<float> WeightReader::read_zero_points(const Linear& m, int64_t n0, int64_t n1) {
  const int64_t groups = scale_columns(m);
  std::vector<float> zeros(static_cast<size_t>((n1 - n0) * groups), 8.0f);
  if (!m.zero_points || m.ignores_zero_points) return zeros;
  const int64_t first = n0 / kInt4Pack;
  read_row_block({*m.zero_points, 0, ceil_div(m.n, kInt4Pack), groups, int{sizeof(uint32_t)},
                  m.reads_across(), first, ceil_div(n1, kInt4Pack)},
                 zero_points_);
  for (int64_t n = n0; n < n1; ++n) {
    const int shift = row_shift(m, n);
    for (int64_t g = 0; g < groups; ++g) {
      const uint32_t word = setting_at(zero_points_, (n / kInt4Pack - first) * groups + g);
      const int stored = static_cast<int>(word >> shift & 15u), zero = stored + m.zero_offset;
      if (zero != 8 && !m.symmetry.empty()) refuse_zero_point(m, stored, n, g);
      if (m.wraps && zero == 16) refuse_wrapped_zero_point(m, n, g);
      zeros[static_cast<size_t>((n - n0) * groups + g)] = static_cast<float>(zero);
    }
  }
  return zeros;
}

std::vector<int32_t> WeightReader::read_group_index(const Linear& m) {
  if (!m.group_index) return {};
  std::vector<int32_t> index(static_cast<size_t>(m.k));
  const std::span<uint8_t> bytes(reinterpret_cast<uint8_t*>(index.data()), index.size() * sizeof(int32_t));
  checkpoint_.read(*m.group_index, 0, bytes);
  bytes_read_ += bytes.size();
  if (std::all_of(index.begin(), index.end(), [](int32_t g) { return g == -1; })) return {};
  const int64_t groups = scale_columns(m);
  for (size_t k = 0; k < index.size(); ++k) {
    if (m.is_ordered && index[k] != static_cast<int64_t>(k) / m.scale_cols) {
      throw Error(
          fmt::format("{}: expected inputs in the order of their groups of {}, because the config states no "
                      "other, found {} at k {}",
                      checkpoint_.where(*m.group_index), m.scale_cols, index[k], k));
    }
    if (index[k] >= 0 && index[k] < groups) continue;
    throw Error(fmt::format("{}: expected groups of 0 to {}, found {} at k {}",
                            checkpoint_.where(*m.group_index), groups - 1, index[k], k));
  }
  return index;
}

void WeightReader::read_integers(const Linear& m, int64_t n0, int64_t n1, std::span<float> out) {
  const int64_t groups = scale_columns(m), words = m.packing == Int4Packing::kAwq ? m.k : ceil_div(m.k, 8);
  const std::vector<int32_t> index = read_group_index(m);
  const std::vector<float> scales = read_float_scales(m, 0, n0, n1), zeros = read_zero_points(m, n0, n1);
  read_weights(m, 0, n0, n1);
  std::vector<uint8_t> codes(static_cast<size_t>(words * kInt4Pack));  // of a row, with the padding of its
                                                                       // words
  for (int64_t n = n0; n < n1; ++n) {
    const bool awq = m.packing == Int4Packing::kAwq;
    const int64_t row = awq ? n / kInt4Pack - n0 / kInt4Pack : n - n0;
    const uint8_t* from = weights_.data() + row * words * int64_t{sizeof(uint32_t)};
    if (awq) {
      take_nibbles(from, m.k, row_shift(m, n), codes.data());
    } else {
      split_nibbles(from, words * int64_t{sizeof(uint32_t)}, codes.data());
    }
    const float *scale = &scales[static_cast<size_t>((n - n0) * groups)],
                *zero = &zeros[static_cast<size_t>((n - n0) * groups)];
    float* to = out.data() + (n - n0) * m.k;
    if (!index.empty()) {
      for (int64_t k = 0; k < m.k; ++k) {
        const int32_t g = index[static_cast<size_t>(k)];
        to[k] = (static_cast<float>(codes[static_cast<size_t>(k)]) - zero[g]) * scale[g];
      }
      continue;
    }
    decode_int4(std::span(codes).first(static_cast<size_t>(m.k)), m.scale_cols, zero, scale, to);
  }
}

float WeightReader::read_global_scale(const Linear& m, int64_t e) {
  bytes_read_ += sizeof(float);
  return read_multiplier(checkpoint_, m, e);
}

}  // namespace twofour
