#include "lib/prove/expected/rederive.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/error.h"
#include "formats/half.h"
#include "formats/layouts/layout_ops.h"
#include "formats/layouts/layouts.h"
#include "lib/source/linears/linears.h"

namespace twofour {
namespace {

/// Rows of one expert in a stored tensor, or a part of K of them. `per_byte` weights share a byte.
struct Slice {
  std::vector<uint8_t> bytes;
  int64_t first, n, width;  ///< rows [first, first + n) of the module; `width` is the number of bytes along K
  bool k_outer;
  uint8_t at(int64_t row, int64_t i) const {
    return bytes[static_cast<size_t>(k_outer ? i * n + row - first : (row - first) * width + i)];
  }
};

Slice read_slice(const Checkpoint& c, const Nvfp4Linear& m, size_t tensor, int64_t per_byte,
                 const SourceRows& rows, const Piece& piece) {
  Slice s{{}, rows.first, (rows.count - 1) * rows.step + 1, piece.k / per_byte, m.k_outer};
  s.bytes.resize(static_cast<size_t>(s.n * s.width));
  const int64_t pitch = m.k_outer ? m.n : m.k / per_byte, start = rows.expert * m.n * (m.k / per_byte);
  const int64_t lines = m.k_outer ? s.width : s.n, length = m.k_outer ? s.n : s.width;
  const int64_t line0 = m.k_outer ? piece.k0 / per_byte : s.first,
                at0 = m.k_outer ? s.first : piece.k0 / per_byte;
  if (length == pitch) {
    c.read(tensor, static_cast<uint64_t>(start + line0 * pitch), s.bytes);
    return s;
  }
  for (int64_t line = 0; line < lines; ++line) {
    const std::span to(&s.bytes[static_cast<size_t>(line * length)], static_cast<size_t>(length));
    c.read(tensor, static_cast<uint64_t>(start + (line0 + line) * pitch + at0), to);
  }
  return s;
}

/// A group as the atom that a layout stores.
template <class Atom>
Atom stored_atom(const DenseGroup& group) {
  if constexpr (std::is_same_v<Atom, SparseGroup>) {
    return prune(group);
  } else {
    return group;
  }
}

DenseGroup dense_atom(const SparseGroup& group) { return expand(group); }
[[maybe_unused]] DenseGroup dense_atom(const DenseGroup& group) { return group; }

/// The index, within the atom, of the first weight along K that a byte of the atom belongs to.
template <class Atom>
int64_t weight_of_byte(int byte) {
  if constexpr (std::is_same_v<Atom, SparseGroup>) {
    return byte < 4 ? 4 * byte : byte < 6 ? 8 * (byte - 4) : 0;
  } else {
    return byte < 8 ? 2 * byte : 0;
  }
}

/// Number i of a tensor of floats.
float float_at(DType type, std::span<const uint8_t> bytes, size_t i) {
  if (type == DType::kF32) {
    float value = 0;
    std::memcpy(&value, &bytes[i * sizeof(value)], sizeof(value));
    return value;
  }
  uint16_t half = 0;
  std::memcpy(&half, &bytes[i * sizeof(half)], sizeof(half));
  return type == DType::kBF16 ? bf16_to_float(half) : fp16_to_float(half);
}

/// The scales of blocks. They are E4M3 in NVFP4, powers of two in MXFP4 and MXFP8, and floats in other FP8.
std::vector<float> decode_scales(const Checkpoint& source, const Linear& m, std::span<const uint8_t> bytes) {
  const DType type = source.tensors()[*m.scale].dtype;
  const auto width = static_cast<size_t>(dtype_bits(type)) / 8;
  std::vector<float> scales(bytes.size() / width);
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = width > 1                ? float_at(type, bytes, i)
                : m.format->global_scale ? e4m3_to_float(bytes[i])
                                         : e8m0_to_float(bytes[i]);
    if (scales[i] >= 0 && std::isfinite(scales[i])) continue;
    throw Error(fmt::format("{}: expected scales that are finite and not negative, found {}",
                            source.where(*m.scale), scales[i]));
  }
  return scales;
}

/// Code `i` of E2M3, bit by bit: code i has the bits from 6 * i on, of which the last is the sign. The other
/// five count steps of 1/8 to 2, of 1/4 to 4, and of 1/2 to 7.5.
float e2m3_at(std::span<const uint8_t> bytes, size_t i) {
  unsigned code = 0;
  for (size_t bit = 0; bit < 6; ++bit) {
    const size_t at = 6 * i + bit;
    code |= (bytes[at / 8] >> at % 8 & 1u) << bit;
  }
  const unsigned steps = code % 32;
  const float eighths = static_cast<float>(steps < 16 ? steps : steps < 24 ? 2 * steps - 16 : 4 * steps - 64);
  return (code < 32 ? eighths : -eighths) / 8;
}

/// Columns [first, first + width) of a matrix of I32 words.
struct Words {
  std::vector<uint32_t> words;
  int64_t first, width;
  uint32_t at(int64_t row, int64_t col) const {
    return words[static_cast<size_t>(row * width + col - first)];
  }
};

/// Reads rows [row, row + rows) of columns [begin, end) of a tensor.
Words read_keys(const Checkpoint& c, size_t tensor, int64_t row, int64_t rows, int64_t begin, int64_t end) {
  const int64_t pitch = c.tensors()[tensor].shape[1];
  Words out{std::vector<uint32_t>(static_cast<size_t>(rows * (end - begin))), begin, end - begin};
  const int64_t runs = out.width == pitch ? 1 : rows, length = rows * out.width / runs;
  for (int64_t i = 0; i < runs; ++i) {
    auto* to = reinterpret_cast<uint8_t*>(&out.words[static_cast<size_t>(i * length)]);
    c.read(tensor, static_cast<uint64_t>(((row + i) * pitch + begin) * 4),
           {to, static_cast<size_t>(length * 4)});
  }
  return out;
}

/// The nibble that a row has in an I32 word, which eight rows share.
int nibble_of(Int4Packing packing, int64_t row) {
  constexpr int kAwqRows[] = {0, 2, 4, 6, 1, 3, 5, 7};
  const auto place = static_cast<int>(row % 8);
  if (packing != Int4Packing::kAwq) return place;
  return static_cast<int>(std::find(kAwqRows, kAwqRows + 8, place) - kAwqRows);
}

/// INT4 weights, derived element by element from their tensors.
class DerivedInt4 {
 public:
  DerivedInt4(const Checkpoint& c, const Linear& m, int64_t n0, int64_t n1) : c_(c), m_(m), n0_(n0) {
    const int64_t first8 = n0 / 8, last8 = (n1 + 7) / 8;
    const bool along_k = m.packing == Int4Packing::kAlongK, awq = m.packing == Int4Packing::kAwq;
    const auto& weight = c.tensors()[m.weight].shape;
    codes_ = along_k ? read_keys(c, m.weight, n0, n1 - n0, 0, weight[1])
             : awq   ? read_keys(c, m.weight, 0, m.k, first8, last8)
                     : read_keys(c, m.weight, 0, weight[0], n0, n1);
    const auto& scale = c.tensors()[*m.scale].shape;
    groups_ = along_k ? scale[1] : scale[0];
    if (m.zero_points && !m.ignores_zero_points) {
      zeros_ = along_k ? read_keys(c, *m.zero_points, first8, last8 - first8, 0, groups_)
                       : read_keys(c, *m.zero_points, 0, groups_, first8, last8);
    }
    read_scales(n1);
    read_groups();
  }

  float weight(int64_t n, int64_t k) const {
    const int64_t group = groups_of_k_[static_cast<size_t>(k)];
    return static_cast<float>(code(n, k) - zero_point(n, group)) *
           scales_[static_cast<size_t>((n - n0_) * groups_ + group)];
  }

 private:
  int code(int64_t n, int64_t k) const {
    switch (m_.packing) {
      case Int4Packing::kAlongK:
        return nibble(codes_.at(n - n0_, k / 8), static_cast<int>(k % 8));
      case Int4Packing::kGptq:
        return nibble(codes_.at(k / 8, n), static_cast<int>(k % 8));
      case Int4Packing::kAwq:
        return nibble(codes_.at(k, n / 8), nibble_of(m_.packing, n));
    }
    return 0;
  }
  int zero_point(int64_t n, int64_t group) const {
    if (!m_.zero_points || m_.ignores_zero_points) return 8;
    const bool along_k = m_.packing == Int4Packing::kAlongK;
    const uint32_t word = along_k ? zeros_.at(n / 8 - n0_ / 8, group) : zeros_.at(group, n / 8);
    return nibble(word, nibble_of(m_.packing, n)) + m_.zero_offset;
  }
  static int nibble(uint32_t word, int place) { return static_cast<int>(word >> 4 * place & 15u); }

  void read_scales(int64_t n1) {
    const TensorInfo& t = c_.tensors()[*m_.scale];
    const auto width = static_cast<size_t>(dtype_bits(t.dtype)) / 8;
    scales_.resize(static_cast<size_t>((n1 - n0_) * groups_));
    const auto put = [&](int64_t first, int64_t count, auto&& place) {
      std::vector<uint8_t> bytes(static_cast<size_t>(count) * width);
      c_.read(*m_.scale, static_cast<uint64_t>(first) * width, bytes);
      for (int64_t i = 0; i < count; ++i) {
        const float value = float_at(t.dtype, bytes, static_cast<size_t>(i));
        if (!std::isfinite(value)) {
          throw Error(
              fmt::format("{}: expected scales that are finite, found {}", c_.where(*m_.scale), value));
        }
        scales_[static_cast<size_t>(place(i))] = value;
      }
    };
    if (m_.packing == Int4Packing::kAlongK)
      return put(n0_ * groups_, (n1 - n0_) * groups_, [](int64_t i) { return i; });
    for (int64_t g = 0; g < groups_; ++g)
      put(g * m_.n + n0_, n1 - n0_, [&](int64_t i) { return i * groups_ + g; });
  }

  /// Reads the group of each input from the file. Groups are consecutive if the file has only -1 or none.
  void read_groups() {
    groups_of_k_.assign(static_cast<size_t>(m_.k), -1);
    if (m_.group_index) {
      auto* to = reinterpret_cast<uint8_t*>(groups_of_k_.data());
      c_.read(*m_.group_index, 0, {to, groups_of_k_.size() * sizeof(int32_t)});
    }
    const bool in_order = *std::max_element(groups_of_k_.begin(), groups_of_k_.end()) == -1 &&
                          *std::min_element(groups_of_k_.begin(), groups_of_k_.end()) == -1;
    for (size_t k = 0; k < groups_of_k_.size(); ++k) {
      if (in_order) groups_of_k_[k] = static_cast<int32_t>(static_cast<int64_t>(k) / m_.scale_cols);
      if (groups_of_k_[k] >= 0 && groups_of_k_[k] < groups_) continue;
      throw Error(fmt::format("{}: expected groups of 0 to {}, found {} at k {}",
                              c_.where(m_.group_index.value_or(*m_.scale)), groups_ - 1, groups_of_k_[k], k));
    }
  }

  const Checkpoint& c_;
  const Linear& m_;
  const int64_t n0_;
  int64_t groups_ = 0;
  Words codes_{}, zeros_{};
  std::vector<float> scales_;  ///< [n1 - n0, groups]
  std::vector<int32_t> groups_of_k_;
};

std::vector<float> derive_int4(const Checkpoint& c, const Linear& m, int64_t n0, int64_t n1) {
  const DerivedInt4 derived(c, m, n0, n1);
  std::vector<float> weights(static_cast<size_t>((n1 - n0) * m.k));
#pragma omp parallel for schedule(static)
  for (int64_t n = n0; n < n1; ++n) {
    for (int64_t k = 0; k < m.k; ++k) weights[static_cast<size_t>((n - n0) * m.k + k)] = derived.weight(n, k);
  }
  return weights;
}

}  // namespace

std::vector<DenseGroup> read_dense_groups(const Checkpoint& source, const OutputMatrix& target,
                                          const OutputScales& scales, int64_t e, const Piece& piece,
                                          bool fold) {
  const int64_t groups = piece.k / kGroup;
  std::vector<DenseGroup> out(static_cast<size_t>(piece.rows * groups));
  for (size_t i = 0; i < target.sources_per_expert; ++i) {
    const size_t at = static_cast<size_t>(e) * target.sources_per_expert + i;
    const SourceRows s = piece_rows(target.sources[at], target, piece);
    const Nvfp4Linear& m = source.nvfp4_modules()[s.module];
    const Slice codes = read_slice(source, m, m.codes, 2, s, piece);
    const Slice block_scales = read_slice(source, m, m.block_scale, kGroup, s, piece);
    const float own = scales.own[at], folded = scales.folded[static_cast<size_t>(e)];
    const float factor = own / folded;
#pragma omp parallel for schedule(static)
    for (int64_t row = 0; row < s.count; ++row) {
      for (int64_t g = 0; g < groups; ++g) {
        DenseGroup& to = out[static_cast<size_t>((s.n0 + row) * groups + g)];
        for (int64_t j = 0; j < 8; ++j) to.codes[j] = codes.at(s.first + row * s.step, 8 * g + j);
        to.scale = block_scales.at(s.first + row * s.step, g);
        if (fold && own != folded) to.scale = e4m3_from_float(e4m3_to_float(to.scale) * factor);
      }
    }
  }
  return out;
}

Mismatch compare_piece(const std::string& layout, Shape shape, std::span<const DenseGroup> groups,
                       std::span<const std::span<const uint8_t>> parts) {
  Mismatch result;
  with_layout(layout, [&]<class L>() {
    std::vector<typename L::Atom> atoms(groups.size());
    const auto count = static_cast<int64_t>(groups.size());
#pragma omp parallel for schedule(static)
    for (int64_t i = 0; i < count; ++i)
      atoms[static_cast<size_t>(i)] = stored_atom<typename L::Atom>(groups[static_cast<size_t>(i)]);
    for (int p = 0; p < L::part_count; ++p) {
      const Part part = L::part(p, shape);
      const std::span<const uint8_t> stored = parts[static_cast<size_t>(p)];
      uint64_t wrong = 0;
#pragma omp parallel for schedule(static) reduction(+ : wrong)
      for (int64_t row = 0; row < part.rows; ++row) {
        for (int64_t col = 0; col < part.cols; ++col) {
          wrong += derive_byte<L>(p, shape, {0, row, col}, atoms) !=
                   stored[static_cast<size_t>(row * part.cols + col)];
        }
      }
      if (wrong > 0 && result.count == 0) {
        for (int64_t i = 0; i < part.bytes(); ++i) {
          const Place at{0, i / part.cols, i % part.cols};
          const uint8_t expected = derive_byte<L>(p, shape, at, atoms);
          if (expected == stored[static_cast<size_t>(i)]) continue;
          const Source s = L::source(p, shape, at);
          const int64_t k =
              s.byte == kPadding ? -1 : s.group * kGroup + weight_of_byte<typename L::Atom>(s.byte);
          result = {0,
                    p,
                    at.row,
                    at.col,
                    s.byte == kPadding ? -1 : s.n,
                    k,
                    expected,
                    stored[static_cast<size_t>(i)]};
          break;
        }
      }
      result.count += wrong;
    }
  });
  return result;
}

std::vector<DenseGroup> unpack_piece(const std::string& layout, Shape shape,
                                     std::span<const std::span<const uint8_t>> parts) {
  std::vector<DenseGroup> groups(static_cast<size_t>(shape.n * shape.groups()));
  with_layout(layout, [&]<class L>() {
#pragma omp parallel for schedule(static)
    for (int64_t n = 0; n < shape.n; ++n) {
      for (int64_t g = 0; g < shape.groups(); ++g) {
        groups[static_cast<size_t>(n * shape.groups() + g)] = dense_atom(unpack_atom<L>(shape, n, g, parts));
      }
    }
  });
  return groups;
}

void apply_pattern(const std::string& layout, std::span<DenseGroup> groups) {
  with_layout(layout, [&]<class L>() {
    for (DenseGroup& group : groups) group = dense_atom(stored_atom<typename L::Atom>(group));
  });
}

void dequantize_groups(std::span<const DenseGroup> groups, double global_scale, std::span<double> out) {
  for (size_t i = 0; i < groups.size(); ++i) {
    const double scale = static_cast<double>(e4m3_to_float(groups[i].scale)) * global_scale;
    for (size_t j = 0; j < kGroup; ++j) {
      const unsigned code = (groups[i].codes[j / 2] >> 4 * (j % 2)) & 15u;
      out[i * kGroup + j] = static_cast<double>(e2m1_to_float(code)) * scale;
    }
  }
}

std::vector<float> derive_weights(const Checkpoint& source, WeightReader& reader, const Linear& m, int64_t e,
                                  int64_t n0, int64_t n1) {
  if (m.format->integers) return derive_int4(source, m, n0, n1);
  const StoredRows stored = reader.read_stored(m, e, n0, n1);
  const DType type = source.tensors()[m.weight].dtype;
  std::vector<float> weights(static_cast<size_t>((n1 - n0) * m.k));
  const auto count = static_cast<int64_t>(weights.size());
  if (!m.format->coded) {
    const auto decode = [&](auto&& value_of, auto bits) {
#pragma omp parallel for schedule(static)
      for (int64_t i = 0; i < count; ++i) {
        auto raw_bits = bits;
        std::memcpy(&raw_bits, &stored.weights[static_cast<size_t>(i) * sizeof(bits)], sizeof(bits));
        weights[static_cast<size_t>(i)] = value_of(raw_bits);
      }
    };
    if (type == DType::kF32) decode([](uint32_t bits) { return std::bit_cast<float>(bits); }, uint32_t{});
    if (type == DType::kBF16) decode([](uint16_t bits) { return bf16_to_float(bits); }, uint16_t{});
    if (type == DType::kF16) decode([](uint16_t bits) { return fp16_to_float(bits); }, uint16_t{});
    return weights;
  }
  const std::vector<float> scales = decode_scales(source, m, stored.scales);
  const float global = m.format->global_scale ? read_multiplier(source, m, e) : 1.0f;
  const int64_t across = (m.k + m.scale_cols - 1) / m.scale_cols, first = n0 / m.scale_rows;
  bool has_nan = false;
#pragma omp parallel for schedule(static) reduction(|| : has_nan)
  for (int64_t n = n0; n < n1; ++n) {
    for (int64_t k = 0; k < m.k; ++k) {
      const auto i = static_cast<size_t>((n - n0) * m.k + k);
      const float scale = scales[static_cast<size_t>((n / m.scale_rows - first) * across + k / m.scale_cols)];
      if (m.format->tiles) {
        const float number = m.format->value_of(stored.weights[i]);
        weights[i] = number * scale;
        has_nan = has_nan || std::isnan(number);
      } else if (m.format->sixes) {
        weights[i] = e2m3_at(stored.weights, i) * scale;
      } else {
        weights[i] = e2m1_to_float(stored.weights[i / 2] >> 4 * (i % 2) & 15u) * scale * global;
      }
    }
  }
  if (has_nan) {
    throw Error(fmt::format("{}: expected weights that are numbers, found NaN", source.where(m.weight)));
  }
  return weights;
}

}  // namespace twofour
