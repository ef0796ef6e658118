#include "lib/validate/rederive.h"

#include <fmt/format.h>

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
#include "lib/checkpoint/linears.h"

namespace twofour {
namespace {

/// Some rows of one expert's slice of a stored tensor, for some of K; `per_byte` weights share a byte.
struct Slice {
  std::vector<uint8_t> bytes;
  int64_t first, n, width;  ///< rows [first, first + n) of the module; width: bytes along K
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

/// Atoms as a layout stores them.
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

/// First weight along K that a byte of an atom belongs to, within the atom.
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

/// Scales of blocks: E4M3 in NVFP4, powers of two in MXFP4 and MXFP8, floats of other FP8.
std::vector<float> decode_scales(const Checkpoint& source, const Linear& m, std::span<const uint8_t> bytes) {
  const DType type = source.tensors()[*m.scale].dtype;
  const auto width = static_cast<size_t>(dtype_bits(type)) / 8;
  std::vector<float> scales(bytes.size() / width);
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = width > 1                          ? float_at(type, bytes, i)
                : m.format == WeightFormat::kNvfp4 ? e4m3_to_float(bytes[i])
                                                   : e8m0_to_float(bytes[i]);
    if (scales[i] >= 0 && std::isfinite(scales[i])) continue;
    throw Error(fmt::format("{}: expected scales that are finite and not negative, found {}",
                            source.where(*m.scale), scales[i]));
  }
  return scales;
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
  const StoredRows stored = reader.read_stored(m, e, n0, n1);
  const DType type = source.tensors()[m.weight].dtype;
  std::vector<float> weights(static_cast<size_t>((n1 - n0) * m.k));
  const auto count = static_cast<int64_t>(weights.size());
  if (m.format == WeightFormat::kFloat) {
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
  float global = 1;
  if (m.format == WeightFormat::kNvfp4) {
    Problems problems;
    global = read_global_scale(source, source.nvfp4_modules()[*m.nvfp4], e, problems).multiplier;
    problems.refuse();
  }
  const int64_t across = (m.k + m.scale_cols - 1) / m.scale_cols, first = n0 / m.scale_rows;
  bool has_nan = false;
#pragma omp parallel for schedule(static) reduction(|| : has_nan)
  for (int64_t n = n0; n < n1; ++n) {
    for (int64_t k = 0; k < m.k; ++k) {
      const auto i = static_cast<size_t>((n - n0) * m.k + k);
      const float scale = scales[static_cast<size_t>((n / m.scale_rows - first) * across + k / m.scale_cols)];
      if (m.format == WeightFormat::kFp8) {
        weights[i] = e4m3_to_float(stored.weights[i]) * scale;
        has_nan = has_nan || e4m3_is_nan(stored.weights[i]);
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
