#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "formats/atom.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/error.h"
#include "kernels/device/check.h"
#include "kernels/numbers/casts.h"
#include "lib/checkpoint/linears.h"

namespace twofour {

SourceScale read_global_scale(const Checkpoint& c, const Nvfp4Linear& m, int64_t expert, Problems& problems) {
  const uint64_t count = c.tensors()[m.global_scale].bytes() / sizeof(float);
  uint8_t bytes[sizeof(float)];
  c.read(m.global_scale, count == 1 ? 0 : static_cast<uint64_t>(expert) * sizeof(float), bytes);
  float stored = 0;
  std::memcpy(&stored, bytes, sizeof(stored));
  const float own = global_scale_multiplier(*m.dialect, stored);
  if (!std::isfinite(stored) || stored <= 0 || !std::isfinite(own) || own <= 0) {
    problems.add(fmt::format("{}: expected a positive finite global scale, found {}", c.where(m.global_scale),
                             stored));
  }
  return {std::bit_cast<uint32_t>(stored), own};
}

namespace {

template <class F>
constexpr std::array<float, 256> table_of(F value) {
  std::array<float, 256> table{};
  for (unsigned byte = 0; byte < 256; ++byte) table[byte] = value(byte);
  return table;
}

constexpr auto kE4m3 = table_of([](unsigned byte) { return e4m3_to_float(byte); });
constexpr auto kE8m0 = table_of([](unsigned byte) { return e8m0_to_float(byte); });

/// Both weights of a byte of codes, the lower k first.
struct CodePair {
  float low, high;
};
constexpr auto kE2m1 = [] {
  std::array<CodePair, 256> table{};
  for (unsigned byte = 0; byte < 256; ++byte)
    table[byte] = {e2m1_to_float(byte & 15u), e2m1_to_float(byte >> 4)};
  return table;
}();

/// [rows, cols] elements to [cols, rows], a tile that fits the L1 cache at a time.
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

int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }

[[noreturn]] void fail(const std::string& where, const char* expected, const std::string& found,
                       const Linear& m, int64_t e, int64_t n, int64_t k) {
  throw Error(fmt::format("{}: expected {}, found {} at {}n {}, k {}", where, expected, found,
                          m.stacked ? fmt::format("expert {}, ", e) : "", n, k));
}

bool has_nan(std::span<const uint8_t> fp8) {
  bool found = false;
  for (const uint8_t byte : fp8) found |= (byte & 0x7F) == kE4m3Nan;
  return found;
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
  const bool codes = m.format == WeightFormat::kMxfp4 || m.format == WeightFormat::kNvfp4;
  const int bytes = codes ? 1 : dtype_bits(checkpoint_.tensors()[m.weight].dtype) / 8;
  read_row_block({m.weight, e, m.n, codes ? m.k / 2 : m.k, bytes, m.k_outer, n0, n1}, weights_);
}

void WeightReader::read_scales(const Linear& m, int64_t e, int64_t n0, int64_t n1) {
  const TensorInfo& t = checkpoint_.tensors()[*m.scale];
  const int bytes = dtype_bits(t.dtype) / 8;
  const bool shared = t.bytes() == static_cast<uint64_t>(bytes);  // one scale counts for every expert
  read_row_block({*m.scale, shared ? 0 : e, ceil_div(m.n, m.scale_rows), ceil_div(m.k, m.scale_cols), bytes,
                  m.k_outer, n0 / m.scale_rows, ceil_div(n1, m.scale_rows)},
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
  check(out.size() == static_cast<size_t>((n1 - n0) * m.k), "room for the rows");
  if (n0 == n1) return;
  switch (m.format) {
    case WeightFormat::kFloat:
      read_weights(m, e, n0, n1);
      return widen(checkpoint_.tensors()[m.weight].dtype, weights_.data(), out);
    case WeightFormat::kFp8:
      return read_fp8(m, e, n0, n1, out);
    case WeightFormat::kMxfp4:
    case WeightFormat::kNvfp4:
      return read_fp4(m, e, n0, n1, out);
  }
}

std::vector<float> WeightReader::read_fp8_scales(const Linear& m, int64_t e, int64_t n0, int64_t n1) {
  const TensorInfo& t = checkpoint_.tensors()[*m.scale];
  const int bytes = dtype_bits(t.dtype) / 8;
  const int64_t first = n0 / m.scale_rows, cols = ceil_div(m.k, m.scale_cols);
  read_scales(m, e, n0, n1);
  std::vector<float> scales(scales_.size() / static_cast<size_t>(bytes));
  if (bytes == 1) {
    for (size_t i = 0; i < scales.size(); ++i) scales[i] = kE8m0[scales_[i]];
  } else {
    widen(t.dtype, scales_.data(), scales);
  }
  for (size_t i = 0; i < scales.size(); ++i) {
    if (std::isfinite(scales[i]) && scales[i] >= 0) continue;
    const auto at = static_cast<int64_t>(i);
    fail(checkpoint_.where(*m.scale), "scales that are finite and not negative", fmt::format("{}", scales[i]),
         m, e, (first + at / cols) * m.scale_rows, at % cols * m.scale_cols);
  }
  return scales;
}

void WeightReader::read_fp8(const Linear& m, int64_t e, int64_t n0, int64_t n1, std::span<float> out) {
  const std::vector<float> scales = read_fp8_scales(m, e, n0, n1);
  const int64_t cols = ceil_div(m.k, m.scale_cols);
  read_weights(m, e, n0, n1);
  if (has_nan(weights_)) {
    const auto bad = std::find_if(weights_.begin(), weights_.end(), [](uint8_t b) { return e4m3_is_nan(b); });
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
      decode_fp8({from + begin, static_cast<size_t>(end - begin)}, scale, to + begin, isa);
    }
  }
}

void WeightReader::read_fp4(const Linear& m, int64_t e, int64_t n0, int64_t n1, std::span<float> out) {
  const bool nvfp4 = m.format == WeightFormat::kNvfp4;
  const int64_t group = m.scale_cols, groups = m.k / group;
  const float global = nvfp4 ? read_global_scale(m, e) : 1.0f;
  read_weights(m, e, n0, n1);
  read_scales(m, e, n0, n1);
  // Block scales and codes multiply exactly; only the global scale rounds.
  const std::array<float, 256>& scale_of = nvfp4 ? kE4m3 : kE8m0;
  const uint8_t last = nvfp4 ? 0x7E : 0xFE;  // above it, negative numbers and NaN
  const uint8_t* codes = weights_.data();
  float* to = out.data();
  for (size_t i = 0; i < scales_.size(); ++i) {
    if (scales_[i] > last) {
      const auto at = static_cast<int64_t>(i);
      fail(checkpoint_.where(*m.scale),
           nvfp4 ? "block scales that are not negative and not NaN" : "block scales that are numbers",
           fmt::format("{} 0x{:02X}", nvfp4 ? "byte" : "NaN,", scales_[i]), m, e, n0 + at / groups,
           at % groups * group);
    }
    const float scale = scale_of[scales_[i]];
    for (int64_t j = 0; j < group / 2; ++j, to += 2) {
      const CodePair pair = kE2m1[*codes++];
      to[0] = pair.low * scale * global;
      to[1] = pair.high * scale * global;
    }
  }
}

float WeightReader::read_global_scale(const Linear& m, int64_t e) {
  Problems problems;
  const float multiplier =
      twofour::read_global_scale(checkpoint_, checkpoint_.nvfp4_modules()[*m.nvfp4], e, problems).multiplier;
  problems.refuse();
  bytes_read_ += sizeof(float);
  return multiplier;
}

}  // namespace twofour
