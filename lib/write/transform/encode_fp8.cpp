#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "formats/atom.h"
#include "kernels/numbers/quantize_mx.h"
#include "lib/write/transform/encoder.h"

namespace twofour {
namespace {

constexpr size_t kMxBlock = kMxGroup;

/// The tiles of a matrix [rows, k]. There are `down` rows of `across` tiles.
struct TileGrid {
  int64_t rows, cols;  ///< size of a tile
  size_t down, across;
  TileGrid(const EncodeRule& rule, const EncodedMatrix& m) {
    const EncodeRule::Tile tile = rule.tile(m.rows, m.k);
    rows = tile.rows;
    cols = tile.cols;
    down = static_cast<size_t>((m.rows + rows - 1) / rows);
    across = static_cast<size_t>((m.k + cols - 1) / cols);
  }
  /// The index of the first tile of row n.
  size_t first(int64_t n) const { return static_cast<size_t>(n / rows) * across; }
};

/// Calls f(tile, begin, end) for each part of a row that is in one tile. The row has `row_size` elements, and
/// a tile has `width` elements of it.
template <class F>
void for_each_part(size_t first_tile, size_t row_size, size_t width, F&& f) {
  for (size_t begin = 0, tile = first_tile; begin < row_size; begin += width, ++tile) {
    f(tile, begin, std::min(begin + width, row_size));
  }
}

/// A range of blocks in the rows that were read.
struct Blocks {
  size_t at, count, code_bytes;  ///< code_bytes is the number of bytes of a block's codes
  std::span<const uint8_t> codes_of(std::span<const uint8_t> all) const {
    return all.subspan(at * code_bytes, count * code_bytes);
  }
};

/// Calls f(tile, blocks) for each tile's part of `count` blocks. The blocks are whole rows of a four-bit
/// matrix and begin at row `row`. The width of a tile is a multiple of the width of a block.
template <class F>
void for_each_stored_part(const TileGrid& grid, const EncodedMatrix& m, int64_t row, size_t count, F&& f) {
  const int64_t group = m.source->scale_cols;
  const auto per_row = static_cast<size_t>(m.k / group), code_bytes = static_cast<size_t>(group / 2);
  const auto width = static_cast<size_t>(grid.cols / group);
  for (size_t r = 0; r < count / per_row; ++r) {
    for_each_part(grid.first(row + static_cast<int64_t>(r)), per_row, width,
                  [&](size_t tile, size_t begin, size_t end) {
                    f(tile, Blocks{r * per_row + begin, end - begin, code_bytes});
                  });
  }
}

/// True if all numbers are equal. If the bits are equal, this is as fast as memcmp.
bool is_equal(std::span<const float> a, std::span<const float> b) {
  return std::memcmp(a.data(), b.data(), a.size_bytes()) == 0 || std::equal(a.begin(), a.end(), b.begin());
}

}  // namespace

void Encoder::survey_fp8(const EncodedMatrix& m, int64_t row, std::span<const float> rows, Survey& survey) {
  const TileGrid grid(rule_, m);
  survey.tiles.resize(grid.down * grid.across);
  if (from_mxfp4_) return;  // exponents decide instead of magnitudes
  if (grid.down * grid.across == 1) {
    survey.tiles[0].amax = survey.amax;
    return;
  }
  const auto k = static_cast<size_t>(m.k);
  for (size_t r = 0; r < rows.size() / k; ++r) {
    for_each_part(grid.first(row + static_cast<int64_t>(r)), k, static_cast<size_t>(grid.cols),
                  [&](size_t tile, size_t begin, size_t end) {
                    float& amax = survey.tiles[tile].amax;
                    amax = std::max(amax, largest_magnitude(rows.subspan(r * k + begin, end - begin), isa_));
                  });
  }
}

void Encoder::survey_tiles(const EncodedMatrix& m, int64_t row, const StoredBlock& block, Survey& survey) {
  for_each_stored_part(TileGrid(rule_, m), m, row, block.scales.size(), [&](size_t tile, const Blocks& part) {
    const auto values = part.codes_of(block.values);
    const auto scales = block.scales.subspan(part.at, part.count);
    Tile& t = survey.tiles[tile];
    if (from_mxfp4_) {
      t.range.add(values, scales);
    } else {
      t.product = std::max(t.product, largest_product(values, scales));
    }
  });
}

void Encoder::choose_tile_scales(Results& results) {
  const DType type = rule_.scheme.scale_type;
  for (size_t i = 0; i < surveys_.size(); ++i) {
    const EncodedMatrix& m = group_->matrices()[i];
    float global = 1;
    if (may_cast_ && !from_mxfp4_) {
      Problems problems;
      global = read_global_scale(source_, source_.nvfp4_modules()[*m.source->nvfp4], m.expert, problems)
                   .multiplier;
      for (const std::string& problem : problems.lines()) results[i].problems.push_back(problem);
    }
    for (Tile& t : surveys_[i].tiles) {
      if (may_cast_) {
        t.scale = from_mxfp4_ ? mxfp4_tile_scale(type, t.range) : nvfp4_tile_scale(type, t.product, global);
      }
      if (t.scale == 0) t.scale = round_scale(type, fp8_scale_of(t.amax));
    }
  }
}

std::vector<float> Encoder::steps_of(const EncodedMatrix& m, const Survey& survey, int64_t row,
                                     size_t weights) const {
  constexpr size_t kColumns = 16;
  const auto blocks = static_cast<size_t>(m.k) / kColumns;
  const TileGrid grid(rule_, m);
  std::vector<float> steps;
  for (size_t i = 0; i < weights / kColumns; ++i) {
    const size_t across = i % blocks * kColumns / static_cast<size_t>(grid.cols);
    steps.push_back(survey.tiles[grid.first(row + static_cast<int64_t>(i / blocks)) + across].scale);
  }
  return steps;
}

void Encoder::encode_fp8(const EncodedMatrix& m, Survey& survey, int64_t row, std::span<const float> rows,
                         const Write& write, EncodedResult& result) {
  codes_.resize(rows.size());
  back_.resize(rows.size());
  const auto k = static_cast<size_t>(m.k);
  const TileGrid grid(rule_, m);
  const bool solved = is_solved(m, survey);
  const std::span<const float> target = solved ? target_of(m, row, rows) : rows;
  const auto for_each_tile = [&](auto&& f) {
    for (size_t r = 0; r < rows.size() / k; ++r) {
      for_each_part(
          grid.first(row + static_cast<int64_t>(r)), k, static_cast<size_t>(grid.cols),
          [&](size_t tile, size_t begin, size_t end) { f(survey.tiles[tile], r * k + begin, end - begin); });
    }
  };
  const auto decode = [&] {
    for_each_tile([&](Tile& t, size_t at, size_t count) {
      decode_fp8(std::span<const uint8_t>(&codes_[at], count), t.scale, &back_[at], isa_);
      if (may_cast_ && !t.is_inexact) t.is_inexact = !is_equal(rows.subspan(at, count), {&back_[at], count});
    });
  };
  if (!solved || rule_.settings->measures_rounding) {
    for_each_tile([&](Tile& t, size_t at, size_t count) {
      twofour::encode_fp8(rows.subspan(at, count), t.scale, &codes_[at], isa_);
    });
    decode();
  }
  if (solved) solve_rounded(rows, target, 0, steps_of(m, survey, row, rows.size()), decode, result);
  write(m.part(EncodedPart::kValues), codes_);
  result.error.add(rows, back_, m.k, isa_);
}

void Encoder::cast_to_fp8(const Write& write, Results& results) {
  for_each_stored_block([&](size_t i, int64_t row, const StoredBlock& block) {
    const EncodedMatrix& m = group_->matrices()[i];
    Survey& survey = surveys_[i];
    shifts_.resize(block.scales.size());
    codes_.resize(2 * block.values.size());
    for_each_stored_part(TileGrid(rule_, m), m, row, block.scales.size(),
                         [&](size_t tile, const Blocks& part) {
                           mxfp4_shifts(block.scales.subspan(part.at, part.count), survey.tiles[tile].scale,
                                        &shifts_[part.at]);
                         });
    cast_mxfp4_codes(block.values, shifts_.data(), codes_.data(), isa_);
    write(m.part(EncodedPart::kValues), codes_);
    if (!is_exact_cast(block.values, shifts_.data())) add_rounded(m, row, block, survey, results[i]);
  });
}

void Encoder::add_rounded(const EncodedMatrix& m, int64_t row, const StoredBlock& block, Survey& survey,
                          EncodedResult& result) {
  const auto k = static_cast<size_t>(m.k), blocks = k / kMxBlock;
  rows_.resize(std::max(rows_.size(), k));
  back_.resize(k);
  const std::span weights = std::span(rows_).first(k);
  const TileGrid grid(rule_, m);
  for (size_t at = 0; at < block.scales.size(); at += blocks, ++row) {
    const StoredBlock own{block.values.subspan(at * kMxBlock / 2, k / 2), block.scales.subspan(at, blocks)};
    if (is_exact_cast(own.values, &shifts_[at])) continue;
    dequantize_mxfp4(own.values, own.scales, rows_.data(), isa_);
    for_each_stored_part(grid, m, row, blocks, [&](size_t tile, const Blocks& part) {
      Tile& t = survey.tiles[tile];
      t.is_inexact = t.is_inexact || !is_exact_cast(part.codes_of(own.values), &shifts_[at + part.at]);
      const size_t begin = part.at * kMxBlock, count = part.count * kMxBlock;
      decode_fp8(std::span(codes_).subspan(at * kMxBlock + begin, count), t.scale, &back_[begin], isa_);
    });
    result.error.error += quantize_error_of(weights, back_, isa_).errors_squared;
  }
}

void Encoder::write_tile_scales(const EncodedMatrix& m, const Survey& survey, const Write& write) {
  const DType type = group_->part_info(m.part(EncodedPart::kScales)).dtype;
  std::vector<float> scales;
  for (const Tile& t : survey.tiles) scales.push_back(t.scale);
  std::vector<uint8_t> bytes(scales.size() * static_cast<size_t>(dtype_bits(type)) / 8);
  store_scales(type, scales, bytes.data());
  write(m.part(EncodedPart::kScales), bytes);
}

std::string Encoder::tile_text(const EncodedMatrix& m, const Survey& survey, size_t tile) const {
  const TileGrid grid(rule_, m);
  std::string text = fmt::format("at row {}, k {}", static_cast<int64_t>(tile / grid.across) * grid.rows,
                                 static_cast<int64_t>(tile % grid.across) * grid.cols);
  const Mxfp4Range& range = survey.tiles[tile].range;
  if (range.low <= range.high) text += fmt::format(" with scales from 2^{} to 2^{}", range.low, range.high);
  return text;
}

void Encoder::count_tiles(Results& results) {
  for (size_t i = 0; i < results.size(); ++i) {
    const EncodedMatrix& m = group_->matrices()[i];
    CastTiles& found = results[i].tiles;
    found = {};
    size_t first = 0;
    for (size_t t = 0; t < surveys_[i].tiles.size(); ++t) {
      ++found.count;
      if (surveys_[i].tiles[t].is_inexact && found.inexact++ == 0) first = t;
    }
    results[i].cast = true;
    if (found.inexact == 0 || m.source->format->group != kMxGroup) continue;
    results[i].findings.push_back(
        {Severity::kWarning, "tiles-not-exact", m.name,
         fmt::format("{} of {} tiles hold values that FP8 rounds under one scale, the first {}",
                     found.inexact, found.count, tile_text(m, surveys_[i], first))});
  }
}

}  // namespace twofour
