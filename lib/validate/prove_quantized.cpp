#include "formats/atom.h"
#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "lib/expected/expected_mx.h"
#include "lib/expected/expected_rows.h"
#include "lib/expected/expected_solve.h"
#include "lib/validate/group_reader.h"

namespace twofour {
namespace {

/// Derives the output of one group of matrices again and compares the artifact with it.
class GroupCheck : public GroupReader {
 public:
  GroupCheck(const QuantizedGroup& group, Proof& proof)
      : GroupReader(group, proof),
        rule_words_(group.encode_rule()),
        words_(rule_words_.words),
        divides_(divides_in(rule_words_.dialect->name)),
        prunes_(words_.pattern != "4:8-paired" && expects_2_4(words_.pattern)),
        mx_(expected_mx(rule_words_.to)),
        results_(group.matrices().size()) {
    if (!is_fp8() && !mx_) rule_ = expected_rule(words_.arithmetic, words_.block_scale, words_.zero_block);
  }

  std::vector<EncodedResult> run() {
    const auto all = [&](auto&& f) {
      for (size_t i = 0; i < results_.size(); ++i) f(group_.matrices()[i], results_[i]);
    };
    float largest = 0;
    all([&](const EncodedMatrix& m, EncodedResult& r) {
      const float own = survey(m, r);
      largest = std::max(largest, has_target(m) ? largest_target(m) : own);
    });
    rule_.weight_type = matrix_weight_type(source_, group_.matrices());
    if (is_fp8()) {
      all([&](const EncodedMatrix& m, EncodedResult& r) { check_fp8(m, r); });
    } else if (mx_) {
      all([&](const EncodedMatrix& m, EncodedResult& r) { casts(m) ? check_mx_cast(m, r) : check_mx(m, r); });
    } else if (const auto range = cast_range()) {
      all([&](const EncodedMatrix& m, EncodedResult& r) { check_cast(m, *range, r); });
    } else {
      all([&](const EncodedMatrix& m, EncodedResult& r) { check_nvfp4(m, largest, r); });
    }
    if (rule_words_.is_nvfp4()) {
      all([&](const EncodedMatrix& m, EncodedResult&) { check_nvfp4_input_scale(m); });
    }
    all([&](const EncodedMatrix& m, EncodedResult&) { check_bias(m); });
    report();
    return std::move(results_);
  }

 private:
  bool is_fp8() const { return rule_words_.to == "fp8"; }

  /// Whether values that the source has in four bits are kept where the output has them: MXFP4 by any rule,
  /// NVFP4 by FP8.
  bool casts(const EncodedMatrix& m) const {
    if (words_.exact == "off" || !words_.pattern.empty() || group_.kept().find(m.name)) return false;
    return m.source->format == WeightFormat::kMxfp4 || (is_fp8() && m.source->format == WeightFormat::kNvfp4);
  }

  void check_nvfp4(const EncodedMatrix& m, float largest, EncodedResult& result) {
    const FixedGlobalScales& kept = group_.kept();
    const FixedGlobalScales::Scale* own = kept.find(m.name);
    const ExpectedGlobal global =
        own == nullptr ? expected_global(rule_, largest, divides_)
                       : kept_global(rule_, std::bit_cast<float>(own->bits), kept.divides, divides_);
    ExpectedGlobal plain_global = global;
    plain_global.keeps_negative = false;
    const ExpectedNvfp4 expected(rule_, global), unpruned(rule_, plain_global);
    hold(m, EncodedPart::kGlobalScale, {global.written});
    result.global_scale = std::bit_cast<uint32_t>(global.written);
    if (m.solving.method != Solving::Method::kPlain && !global.all_zero && can_solve(global.written))
      return check_solved(m, global, result);
    if (rule_words_.in_place && rule_words_.masks) return check_masked(m, global, result);
    const bool prunes = prunes_ || rule_words_.masks;
    for_each_row_block(m, [&](int64_t begin, int64_t end) {
      const Floats weights = rows(m, begin, end);
      const auto k = static_cast<size_t>(m.k);
      Bytes codes(weights.size() / 2), scales(weights.size() / kGroup);
      Floats pruned(prunes ? weights.size() : 0), back(weights.size());
      std::vector<RowError> errors(weights.size() / k), after(errors.size());
      const Bytes mask = mask_rows(m, begin, end);
      for_each_row(m, begin, weights, [&](std::span<const float> row, int64_t, size_t r) {
        const auto row_codes = std::span(codes).subspan(r * k / 2, k / 2);
        const auto row_scales = std::span(scales).subspan(r * k / kGroup, k / kGroup);
        const auto values = std::span(back).subspan(r * k, k);
        const auto read_back = [&] {
          expected_values(row_codes, row_scales, global.written, divides_, values);
          return row_error(row, values);
        };
        std::span<const float> kept_weights = row;
        if (prunes) {
          // The error of quantizing first and pruning afterwards.
          unpruned.quantize(row, row_codes, row_scales);
          const auto row_mask = std::span(mask).subspan(mask.empty() ? 0 : r * k, mask.empty() ? 0 : k);
          mask.empty() ? expect_2_4(row_codes) : expect_masked(row_mask, row_codes);
          after[r] = read_back();
          const auto own_row = std::span(pruned).subspan(r * k, k);
          std::copy(row.begin(), row.end(), own_row.begin());
          if (mask.empty()) expect_2_4(own_row);
          for (size_t i = 0; i < row_mask.size(); ++i) own_row[i] = row_mask[i] == 1 ? row[i] : 0.0f;
          kept_weights = own_row;
        }
        expected.quantize(kept_weights, row_codes, row_scales);
        errors[r] = read_back();
      });
      add(errors, result.error);
      if (prunes) add(after, result.pruned_after);
      hold(m, EncodedPart::kValues, begin * m.k / 2, codes, 2);
      hold(m, EncodedPart::kScales, begin * m.k / kGroup, scales, kGroup);
    });
  }

  // --- Masks that were given ---
  /// Rows [begin, end) of the mask of a matrix; empty: none is given.
  Bytes mask_rows(const EncodedMatrix& m, int64_t begin, int64_t end) {
    const MaskFile* masks = rule_words_.masks.get();
    if (masks == nullptr) return {};
    Bytes mask(static_cast<size_t>((end - begin) * m.k));
    masks->read(masks->find(m.name).value(), begin, mask);
    return mask;
  }

  static void expect_masked(std::span<const uint8_t> mask, std::span<uint8_t> codes) {
    for (size_t i = 0; i < mask.size(); ++i) {
      if (mask[i] == 0) codes[i / 2] &= i % 2 == 0 ? 0xF0 : 0x0F;
    }
  }

  /// The source's codes, but for those that the mask drops, and its block scales.
  void check_masked(const EncodedMatrix& m, const ExpectedGlobal& global, EncodedResult& result) {
    const auto k = static_cast<size_t>(m.k);
    for_each_row_block(m, [&](int64_t begin, int64_t end) {
      StoredCopy from = stored_fp4(m, begin, end);
      expect_masked(mask_rows(m, begin, end), from.codes);
      const Floats weights = rows(m, begin, end);
      Floats back(weights.size());
      std::vector<RowError> errors(weights.size() / k);
      for_each_row(m, begin, weights, [&](std::span<const float> row, int64_t, size_t r) {
        const auto values = std::span(back).subspan(r * k, k);
        expected_values(std::span(from.codes).subspan(r * k / 2, k / 2),
                        std::span(from.scales).subspan(r * k / kGroup, k / kGroup), global.written, divides_,
                        values);
        errors[r] = row_error(row, values);
      });
      add(errors, result.error);
      hold(m, EncodedPart::kValues, begin * m.k / 2, from.codes, 2);
      hold(m, EncodedPart::kScales, begin * m.k / kGroup, from.scales, kGroup);
    });
  }

  // --- Matrices that were solved by statistics ---
  bool has_target(const EncodedMatrix& m) const { return m.solving.target_offset.has_value(); }

  /// W + 0.5 C (H + lambda I)^-1 of rows [begin, end).
  Floats targets(const EncodedMatrix& m, const SolvedHessian& h, int64_t begin, int64_t end) {
    Floats target = rows(m, begin, end);
    if (!has_target(m)) return target;
    Floats offset(target.size());
    rule_words_.statistics->read_target_offset(*m.solving.target_offset, *m.solving.entry, begin, offset);
    const auto k = static_cast<size_t>(m.k);
    // The converter leaves row blocks alone that have no offset at all; theirs is 0 all the same.
#pragma omp parallel for schedule(static)
    for (size_t r = 0; r < target.size() / k; ++r) {
      const auto row = std::span(offset).subspan(r * k, k);
      if (std::all_of(row.begin(), row.end(), [](float c) { return c == 0; })) continue;
      for (float& c : row) c = static_cast<float>(double{c} * h.mean.unit);
      h.inverse->multiply(row);
      for (size_t i = 0; i < k; ++i) target[r * k + i] += 0.5f * row[i];
    }
    return target;
  }

  float largest_target(const EncodedMatrix& m) {
    float largest = 0;
    const auto h = proof_.hessians->of(*rule_words_.statistics, m.solving);
    for_each_row_block(m, [&](int64_t begin, int64_t end) {
      for (const float w : targets(m, *h, begin, end)) largest = std::max(largest, std::fabs(w));
    });
    return largest;
  }

  /// Whether steps under a global scale, and their reciprocals, are normal numbers.
  bool can_solve(float global) const {
    for (const unsigned scale : {1u, 126u}) {
      const float value = e4m3_to_float(scale), step = divides_ ? value / global : value * global;
      if (!(step > 0) || !std::isnormal(step) || !std::isnormal(1.0f / step)) return false;
    }
    return std::isnormal(global) && std::isnormal(1.0f / global);
  }

  ExpectedSolver solver_of(const EncodedMatrix& m, const ExpectedGlobal& global) const {
    ExpectedSolver s;
    s.method = m.solving.method == Solving::Method::kFull        ? ExpectedSolver::Method::kJoint
               : m.solving.method == Solving::Method::kSparseGpt ? ExpectedSolver::Method::kSparseGpt
                                                                 : ExpectedSolver::Method::kDiagonal;
    s.group = words_.pattern == "4:8-paired" ? 8 : 4;
    s.dense = words_.pattern.empty();
    s.divides = divides_;
    s.global = global.written;
    const Floats zeros(kGroup);
    Bytes codes(kGroup / 2), scale(1);
    ExpectedNvfp4(rule_, global).quantize(zeros, codes, scale);
    s.zero_scale = scale[0];
    s.sweeps = m.solving.sweeps;
    return s;
  }

  /// Solves rows again and compares their bytes; of all rows the pattern and the loss, which reports have.
  void check_solved(const EncodedMatrix& m, const ExpectedGlobal& global, EncodedResult& result) {
    const auto h = proof_.hessians->of(*rule_words_.statistics, m.solving);
    const ExpectedSolver solver = solver_of(m, global);
    const auto k = static_cast<size_t>(m.k);
    result.output.method = solving_name(m.solving, !solver.dense);
    uint64_t not_drawn = 0;
    for (int64_t n = 0; n < m.rows; ++n) not_drawn += !is_drawn(m, n);
    proof_.add_solved(static_cast<uint64_t>(m.rows), not_drawn);
    for_each_row_block(m, [&](int64_t begin, int64_t end) {
      const Floats weights = rows(m, begin, end), target = targets(m, *h, begin, end);
      Bytes codes(weights.size() / 2), scales(weights.size() / kGroup);
      proof_.read(m.part(EncodedPart::kValues), static_cast<uint64_t>(begin * m.k / 2), codes);
      proof_.read(m.part(EncodedPart::kScales), static_cast<uint64_t>(begin * m.k / kGroup), scales);
      Bytes expected_codes = codes, expected_scales = scales;
      const Bytes mask = mask_rows(m, begin, end);
      Floats back(weights.size());
      std::vector<RowError> errors(weights.size() / k);
      std::vector<double> losses(errors.size()), energies(errors.size());
      std::vector<double> other_losses(h->heldout.numbers.empty() ? 0 : errors.size()),
          other_energies = other_losses, expected_losses(h->fisher.numbers.empty() ? 0 : errors.size());
      std::vector<char> broken(errors.size());
      for_each_row(m, begin, weights, [&](std::span<const float> row, int64_t n, size_t r) {
        const auto row_codes = std::span(codes).subspan(r * k / 2, k / 2);
        const auto values = std::span(back).subspan(r * k, k);
        expected_values(row_codes, std::span(scales).subspan(r * k / kGroup, k / kGroup), global.written,
                        divides_, values);
        errors[r] = row_error(row, values);
        Floats change(row.begin(), row.end());
        for (size_t i = 0; i < k; ++i) change[i] -= values[i];
        losses[r] = form_of(h->mean, change);
        energies[r] = form_of(h->mean, row);
        if (!h->fisher.numbers.empty()) expected_losses[r] = form_of(h->fisher, change);
        if (!h->heldout.numbers.empty()) {
          other_losses[r] = form_of(h->heldout, change);
          other_energies[r] = form_of(h->heldout, row);
        }
        broken[r] = !has_pattern(values, solver);
        if (!is_drawn(m, n)) return;
        const auto own = std::span<const float>(target).subspan(r * k, k);
        const auto kept = std::span(mask).subspan(mask.empty() ? 0 : r * k, mask.empty() ? 0 : k);
        const ExpectedRow solved = h->diagonal.empty()
                                       ? expect_row(solver, h->hessian, own, kept)
                                       : expect_row_by_diagonal(solver, h->diagonal, own, kept);
        for (size_t i = 0; i < k / 2; ++i) {
          expected_codes[r * k / 2 + i] =
              static_cast<uint8_t>(solved.codes[2 * i] | solved.codes[2 * i + 1] << 4);
        }
        std::copy(solved.scales.begin(), solved.scales.end(),
                  expected_scales.begin() + static_cast<ptrdiff_t>(r * k / kGroup));
      });
      add(errors, result.error);
      for (const double loss : expected_losses) result.output.expected_loss += loss;
      for (size_t r = 0; r < other_losses.size(); ++r) {
        result.output.heldout_loss += other_losses[r];
        result.output.heldout_energy += other_energies[r];
      }
      for (size_t r = 0; r < losses.size(); ++r) {
        result.output.loss += losses[r];
        result.output.energy += energies[r];
        if (broken[r]) {
          proof_.differ(m.part(EncodedPart::kValues),
                        fmt::format("expected {} codes, found others in row {}", words_.pattern,
                                    begin + static_cast<int64_t>(r)));
          break;
        }
      }
      hold(m, EncodedPart::kValues, begin * m.k / 2, expected_codes, 2);
      hold(m, EncodedPart::kScales, begin * m.k / kGroup, expected_scales, kGroup);
    });
  }

  /// Whether a row is solved again: of a matrix 64, evenly spaced.
  bool is_drawn(const EncodedMatrix& m, int64_t n) const {
    constexpr int64_t kDrawn = 64;
    return proof_.all_rows || m.rows <= kDrawn || n * kDrawn / m.rows != (n + 1) * kDrawn / m.rows;
  }

  /// e H e', H a mean [k, k] or its diagonal [k].
  static double form_of(const ExpectedMean& mean, std::span<const float> e) {
    const std::vector<float>& h = mean.numbers;
    if (h.size() > e.size()) return expect_float_form(h, e) / mean.unit;
    double form = 0;
    for (size_t i = 0; i < e.size(); ++i) form += double{h[i]} * double{e[i]} * double{e[i]};
    return form / mean.unit;
  }

  static bool has_pattern(std::span<const float> values, const ExpectedSolver& solver) {
    if (solver.dense) return true;
    const auto each = static_cast<size_t>(solver.group / 4);
    for (size_t first = 0; first < values.size(); first += 4 * each) {
      int kept = 0;
      for (size_t c = 0; c < 4; ++c) {
        const auto part = values.subspan(first + c * each, each);
        kept += std::any_of(part.begin(), part.end(), [](float v) { return v != 0; });
      }
      if (kept > 2) return false;
    }
    return true;
  }

  /// FP8 tiles of a matrix, in rows of `across`.
  struct Tiles {
    DType type;           ///< of scales
    int64_t rows, width;  ///< of a tile
    size_t across;
    std::vector<ExpectedProducts> products;  ///< of sources in four bits
    Floats scales;                           ///< largest magnitudes before
    size_t first(int64_t n) const { return static_cast<size_t>(n / rows) * across; }
    /// Calls f(tile, begin, end) for the parts of row n that lie in its tiles.
    template <class F>
    void for_each_part(int64_t n, size_t k, F&& f) const {
      for (size_t b = 0; b < across; ++b) {
        const auto w = static_cast<size_t>(width);
        f(first(n) + b, b * w, std::min((b + 1) * w, k));
      }
    }
  };

  Tiles tiles_of(const EncodedMatrix& m) {
    const ExpectedBlock block = expected_block(words_.granularity, words_.block, m.rows, m.k);
    const auto across = static_cast<size_t>((m.k + block.width - 1) / block.width);
    Tiles tiles{expected_scale_type(words_.scale_dtype), block.rows, block.width, across, {}, {}};
    tiles.scales.resize(tiles.first(m.rows - 1) + across);
    tiles.products.resize(tiles.scales.size());
    for_each_row_block(m, [&](int64_t begin, int64_t end) {
      Floats largest(static_cast<size_t>(end - begin) * across);
      for_each_row(m, begin, rows(m, begin, end), [&](std::span<const float> row, int64_t n, size_t r) {
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

  /// The global scale of a matrix in NVFP4, as a multiplier.
  float source_global(const EncodedMatrix& m) {
    const Nvfp4Linear& from = source_.nvfp4_modules()[*m.source->nvfp4];
    Bytes bytes(sizeof(float));
    const bool is_shared = source_.tensors()[from.global_scale].bytes() == bytes.size();
    source_.read(from.global_scale, is_shared ? 0 : static_cast<uint64_t>(m.expert) * bytes.size(), bytes);
    return from.dialect->divides ? 1.0f / float_in(bytes, 0) : float_in(bytes, 0);
  }

  void check_fp8(const EncodedMatrix& m, EncodedResult& result) {
    const Tiles tiles = tiles_of(m);
    hold_scales(m, tiles);
    check_input_scale(m);
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

  /// MXFP8 and MXFP4, a byte a weight before codes are packed.
  void check_mx(const EncodedMatrix& m, EncodedResult& result) {
    const bool fp8 = *mx_ == ExpectedMx::kMxfp8;
    for_each_row_block(m, [&](int64_t begin, int64_t end) {
      const Floats weights = rows(m, begin, end);
      Bytes codes(weights.size()), scales(weights.size() / kMxGroup);
      Floats back(weights.size());
      std::vector<RowError> errors(static_cast<size_t>(end - begin));
      for_each_row(m, begin, weights, [&](std::span<const float> row, int64_t, size_t r) {
        for (size_t k = 0; k < row.size(); k += kMxGroup) {
          const size_t at = r * row.size() + k;
          const auto own = std::span(codes).subspan(at, kMxGroup);
          const uint8_t scale =
              expect_mx_block(*mx_, words_.arithmetic, rule_.weight_type, row.subspan(k, kMxGroup), own);
          scales[at / kMxGroup] = scale;
          for (size_t i = 0; i < own.size(); ++i) {
            back[at + i] = (fp8 ? e4m3_to_float(own[i]) : e2m1_to_float(own[i])) * e8m0_to_float(scale);
          }
        }
        errors[r] = row_error(row, std::span(back).subspan(r * row.size(), row.size()));
      });
      add(errors, result.error);
      hold(m, EncodedPart::kScales, begin * m.k / kMxGroup, scales, kMxGroup);
      if (fp8) {
        hold(m, EncodedPart::kValues, begin * m.k, codes, 1);
        return;
      }
      Bytes packed(codes.size() / 2);
      for (size_t i = 0; i < packed.size(); ++i) {
        packed[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
      }
      hold(m, EncodedPart::kValues, begin * m.k / 2, packed, 2);
    });
  }

  /// MXFP4 in another spelling, or its codes as E4M3, under the same scales.
  void check_mx_cast(const EncodedMatrix& m, EncodedResult& result) {
    result.cast = true;
    for_each_row_block(m, [&](int64_t begin, int64_t end) {
      add_exact(m, begin, end, result);
      StoredCopy from = stored_fp4(m, begin, end);
      hold(m, EncodedPart::kScales, begin * m.k / kMxGroup, from.scales, kMxGroup);
      if (*mx_ == ExpectedMx::kMxfp4) {
        hold(m, EncodedPart::kValues, begin * m.k / 2, from.codes, 2);
        return;
      }
      Bytes values;
      for (const uint8_t byte : from.codes) {
        for (const unsigned code : {byte & 15u, byte >> 4 & 15u}) {
          values.push_back(e4m3_from_float(e2m1_to_float(code)));
        }
      }
      hold(m, EncodedPart::kValues, begin * m.k, values, 1);
    });
  }

  /// The figures of rows that stay as they are.
  void add_exact(const EncodedMatrix& m, int64_t begin, int64_t end, EncodedResult& result) {
    std::vector<RowError> errors(static_cast<size_t>(end - begin));
    for_each_row(m, begin, rows(m, begin, end),
                 [&](std::span<const float> row, int64_t, size_t r) { errors[r] = row_error(row, row); });
    add(errors, result.error);
  }

  /// The input scale that the rule's words give a matrix, or none.
  void check_nvfp4_input_scale(const EncodedMatrix& m) {
    const InputScaleRule* rule = group_.input_scales().get();
    const float scale = rule ? proof_.input_scales.of(*rule, m.name).multiplier : 0;
    const bool has = m.part(EncodedPart::kInputScale) >= 0;
    if (has != (scale > 0)) {
      proof_.differ("input-scale", m.name,
                    fmt::format("expected {} input scale by the rule's words, found {}", has ? "no" : "an",
                                has ? "one" : "none"));
    } else if (has) {
      hold(m, EncodedPart::kInputScale, {divides_ ? 1.0f / scale : scale});
    }
  }

  /// ModelOpt's FP8 per tensor: the multiplier of activations in E4M3, 1 if the source has none.
  void check_input_scale(const EncodedMatrix& m) {
    if (m.part(EncodedPart::kInputScale) < 0) return;
    const Linear& w = *m.source;
    float scale = 1;
    if (w.input_scale) {
      Bytes bytes(sizeof(scale));
      const bool is_shared = source_.tensors()[*w.input_scale].bytes() == bytes.size();
      source_.read(*w.input_scale, is_shared ? 0 : static_cast<uint64_t>(m.expert) * bytes.size(), bytes);
      scale = float_in(bytes, 0);
      if (w.format == WeightFormat::kNvfp4) {
        // amax / 2688, or its reciprocal, becomes amax / 448.
        const bool divides = source_.nvfp4_modules()[*w.nvfp4].dialect->divides;
        scale = (divides ? 1.0f / scale : scale) * 6.0f;
      }
    }
    hold(m, EncodedPart::kInputScale, {scale});
  }

  /// The scales of MXFP4 weights that are cast as a group.
  std::optional<CastRange> cast_range() {
    CastRange range;
    for (const EncodedMatrix& m : group_.matrices()) {
      if (!casts(m)) return {};
      for_each_row_block(m, [&](int64_t begin, int64_t end) {
        const StoredCopy from = stored_fp4(m, begin, end);
        range.add(from.codes, from.scales);
      });
    }
    return range;
  }

  void check_cast(const EncodedMatrix& m, const CastRange& range, EncodedResult& result) {
    const int exponent = range.exponent();
    const float global = std::ldexp(1.0f, divides_ ? -exponent : exponent);
    hold(m, EncodedPart::kGlobalScale, {global});
    result.global_scale = std::bit_cast<uint32_t>(global);
    result.cast = true;
    for_each_row_block(m, [&](int64_t begin, int64_t end) {
      const StoredCopy from = stored_fp4(m, begin, end);
      Bytes codes, scales;
      for (size_t i = 0; i < from.codes.size(); ++i) {
        const uint8_t power = from.scales[2 * i / kMxGroup];
        codes.push_back(static_cast<uint8_t>(expected_cast_code(from.codes[i] & 15u, power, exponent) |
                                             expected_cast_code(from.codes[i] >> 4u, power, exponent) << 4));
      }
      for (const uint8_t byte : from.scales)
        scales.insert(scales.end(), 2, expected_cast_scale(byte, exponent));
      hold(m, EncodedPart::kValues, begin * m.k / 2, codes, 2);
      hold(m, EncodedPart::kScales, begin * m.k / kGroup, scales, kGroup);
      const Floats weights = rows(m, begin, end);
      std::vector<RowError> errors(static_cast<size_t>(end - begin));
      Floats back(weights.size());
      const auto k = static_cast<size_t>(m.k);
      for_each_row(m, begin, weights, [&](std::span<const float> row, int64_t, size_t r) {
        const auto values = std::span(back).subspan(r * k, k);
        expected_values(std::span(codes).subspan(r * k / 2, k / 2),
                        std::span(scales).subspan(r * k / kGroup, k / kGroup), global, divides_, values);
        errors[r] = row_error(row, values);
      });
      add(errors, result.error);
      if (range.is_exact()) return;
      for (size_t i = 0; i < weights.size(); i += kMxGroup) {
        ++result.tiles.count;
        result.tiles.inexact += !std::equal(&weights[i], &weights[i] + kMxGroup, &back[i]);
      }
    });
  }

  const EncodeRule& rule_words_;
  const EncodeRule::Words& words_;
  const bool divides_, prunes_;
  const std::optional<ExpectedMx> mx_;
  ExpectedRule rule_;
  std::vector<EncodedResult> results_;
};

}  // namespace

Json QuantizedGroup::prove(Proof& proof) const {
  Json result = Json::array();
  for (const EncodedResult& r : GroupCheck(*this, proof).run()) result.push_back(to_json(r));
  return result;
}

}  // namespace twofour
