#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "lib/prove/validate/quantized/solved_check.h"

namespace twofour {
namespace {

/// FP8 tiles of a matrix, in rows of `across` tiles.
struct Tiles {
  DType type;           ///< the type of scales
  int64_t rows, width;  ///< size of a tile
  size_t across;
  std::vector<ExpectedProducts> products;  ///< for four-bit sources
  Floats scales;                           ///< holds the largest magnitudes at first
  size_t first(int64_t n) const { return static_cast<size_t>(n / rows) * across; }
  /// Calls f(tile, begin, end) for each part of row n that is in one tile.
  template <class F>
  void for_each_part(int64_t n, size_t k, F&& f) const {
    for (size_t b = 0; b < across; ++b) {
      const auto w = static_cast<size_t>(width);
      f(first(n) + b, b * w, std::min((b + 1) * w, k));
    }
  }
};

/// The check of FP8 with one scale for each tensor, row or block.
class Fp8Check : public SolvedCheck {
 public:
  using SolvedCheck::SolvedCheck;

 private:
  void prepare(float) override {}

  void check(const EncodedMatrix& m, EncodedResult& result) override {
    const Tiles tiles = tiles_of(m);
    hold_scales(m, tiles);
    const bool fits = std::all_of(tiles.scales.begin(), tiles.scales.end(), [](float s) {
      return s >= std::ldexp(1.0f, -100) && s <= std::ldexp(1.0f, 100);
    });
    if (fits && is_solved(m)) return check_solved(m, solved_form(m, tiles), result);
    Bytes inexact(tiles.scales.size());
    for_each_row_block(m, [&](int64_t begin, int64_t end) {
      const Floats weights = rows(m, begin, end);
      Bytes bytes(weights.size()), rounded(static_cast<size_t>(end - begin) * tiles.across);
      Floats back(weights.size());
      std::vector<RowError> errors(static_cast<size_t>(end - begin));
      for_each_row(m, begin, weights, [&](std::span<const float> row, int64_t n, size_t r) {
        const auto row_bytes = std::span(bytes).subspan(r * row.size(), row.size());
        const auto values = std::span(back).subspan(r * row.size(), row.size());
        tiles.for_each_part(n, row.size(), [&](size_t tile, size_t k, size_t stop) {
          const float scale = tiles.scales[tile];
          for (; k < stop; ++k) {
            row_bytes[k] = expected_fp8(row[k], scale);
            values[k] = e4m3_to_float(row_bytes[k]) * scale;
            if (values[k] != row[k]) rounded[r * tiles.across + tile - tiles.first(n)] = 1;
          }
        });
        errors[r] = row_error(row, values);
      });
      for (size_t i = 0; i < rounded.size(); ++i) {
        inexact[tiles.first(begin + static_cast<int64_t>(i / tiles.across)) + i % tiles.across] |= rounded[i];
      }
      add(errors, result.error);
      hold(m, EncodedPart::kValues, begin * m.k, bytes, 1);
    });
    if (!casts(m)) return;
    result.cast = true;
    result.tiles.count = inexact.size();
    result.tiles.inexact = static_cast<uint64_t>(std::count(inexact.begin(), inexact.end(), 1));
  }

  /// The form of a matrix that statistics solved under the scales of its tiles.
  Solved solved_form(const EncodedMatrix& m, const Tiles& tiles) const {
    Solved form{.solver = solver_of(m), .decode = {}};
    use_format(form.solver, encode_rule_.to);
    form.bits = 8;
    form.block = 0;
    form.decode = [&tiles](std::span<const uint8_t> codes, std::span<const uint8_t>, int64_t n,
                           std::span<float> values) {
      tiles.for_each_part(n, values.size(), [&](size_t tile, size_t k, size_t stop) {
        for (; k < stop; ++k) values[k] = e4m3_to_float(codes[k]) * tiles.scales[tile];
      });
    };
    form.give_steps = [&tiles, k = static_cast<size_t>(m.k)](ExpectedSolver& solver, int64_t n) {
      solver.steps.resize(k / solver.block);
      tiles.for_each_part(n, k, [&](size_t tile, size_t begin, size_t stop) {
        for (size_t i = begin; i < stop; i += solver.block)
          solver.steps[i / solver.block] = tiles.scales[tile];
      });
    };
    return form;
  }

  void hold_scales(const EncodedMatrix& m, const Tiles& tiles) {
    const auto width = static_cast<size_t>(dtype_bits(tiles.type)) / 8;
    Bytes bytes;
    for (const float scale : tiles.scales) {
      const uint32_t bits = expected_scale_bits(tiles.type, scale);
      for (size_t i = 0; i < width; ++i) bytes.push_back(static_cast<uint8_t>(bits >> 8 * i));
    }
    compare(m.part(EncodedPart::kScales), 0, bytes, [&](size_t i, const Bytes& found) {
      uint32_t bits = 0;
      for (size_t j = 0; j < width; ++j) bits |= uint32_t{found[i / width * width + j]} << 8 * j;
      return fmt::format("element {}): expected {}, found {}", i / width, tiles.scales[i / width],
                         scale_in(tiles.type, bits));
    });
  }

  static float scale_in(DType type, uint32_t bits) {
    if (type == DType::kF32) return std::bit_cast<float>(bits);
    return type == DType::kBF16 ? std::bit_cast<float>(bits << 16) : e8m0_to_float(bits);
  }

  /// Checks the input scale of ModelOpt's FP8 per tensor. It is the multiplier of activations in E4M3, or 1
  /// if the source has none.
  void check_input_scale(const EncodedMatrix& m) override {
    if (m.part(EncodedPart::kInputScale) < 0) return;
    const Linear& w = *m.source;
    float scale = 1;
    if (w.input_scale) {
      scale = source_scalar(*w.input_scale, m);
      if (w.format == WeightFormat::kNvfp4) {
        // The stored scale is amax / 2688 or its reciprocal. The result is amax / 448.
        const bool divides = source_.nvfp4_modules()[*w.nvfp4].dialect->divides;
        scale = (divides ? 1.0f / scale : scale) * 6.0f;
      }
    }
    hold(m, EncodedPart::kInputScale, {scale});
  }

  Tiles tiles_of(const EncodedMatrix& m) {
    const ExpectedBlock block = expected_block(rule_.granularity.text(), rule_.block.text(), m.rows, m.k);
    const auto across = static_cast<size_t>((m.k + block.width - 1) / block.width);
    Tiles tiles{expected_scale_type(rule_.scale_dtype.text()), block.rows, block.width, across, {}, {}};
    tiles.scales.resize(tiles.first(m.rows - 1) + across);
    tiles.products.resize(tiles.scales.size());
    for_each_row_block(m, [&](int64_t begin, int64_t end) {
      Floats largest(static_cast<size_t>(end - begin) * across);
      for_each_row(m, begin, aims(m, begin, end), [&](std::span<const float> row, int64_t n, size_t r) {
        tiles.for_each_part(n, row.size(), [&](size_t tile, size_t k, size_t stop) {
          float& own = largest[r * across + tile - tiles.first(n)];
          for (; k < stop; ++k) own = std::max(own, std::fabs(row[k]));
        });
      });
      for (size_t i = 0; i < largest.size(); ++i) {
        float& amax = tiles.scales[tiles.first(begin + static_cast<int64_t>(i / across)) + i % across];
        amax = std::max(amax, largest[i]);
      }
      if (casts(m)) add_products(m, begin, end, tiles);
    });
    choose_scales(m, tiles);
    return tiles;
  }

  void add_products(const EncodedMatrix& m, int64_t begin, int64_t end, Tiles& tiles) {
    const bool mxfp4 = m.source->format == WeightFormat::kMxfp4;
    const int64_t group = m.source->scale_cols;
    const auto per_row = static_cast<size_t>(m.k / group), bytes = static_cast<size_t>(group / 2);
    const StoredCopy from = stored_fp4(m, begin, end);
    for (size_t i = 0; i < from.scales.size(); ++i) {
      const int64_t n = begin + static_cast<int64_t>(i / per_row);
      const auto k = static_cast<int64_t>(i % per_row) * group;
      ExpectedProducts& tile = tiles.products[tiles.first(n) + static_cast<size_t>(k / tiles.width)];
      const std::span codes(&from.codes[i * bytes], bytes);
      mxfp4 ? tile.add_mxfp4(codes, from.scales[i]) : tile.add_nvfp4(codes, from.scales[i]);
    }
  }

  void choose_scales(const EncodedMatrix& m, Tiles& tiles) {
    const bool mxfp4 = m.source->format == WeightFormat::kMxfp4;
    const float global = casts(m) && !mxfp4 ? source_global(m) : 1;
    for (size_t i = 0; i < tiles.scales.size(); ++i) {
      std::optional<float> cast;
      if (casts(m)) {
        cast = mxfp4 ? expected_mxfp4_tile(tiles.type, tiles.products[i])
                     : expected_nvfp4_tile(tiles.type, tiles.products[i], global);
      }
      tiles.scales[i] = cast ? *cast : expected_fp8_scale(tiles.type, tiles.scales[i]);
    }
  }

  /// The global scale of an NVFP4 matrix, as a multiplier.
  float source_global(const EncodedMatrix& m) const {
    const Nvfp4Linear& from = source_.nvfp4_modules()[*m.source->nvfp4];
    const float stored = source_scalar(from.global_scale, m);
    return from.dialect->divides ? 1.0f / stored : stored;
  }
};

}  // namespace

std::unique_ptr<QuantizedCheck> make_fp8_check(const QuantizedGroup& group, Proof& proof) {
  return std::make_unique<Fp8Check>(group, proof);
}

}  // namespace twofour
