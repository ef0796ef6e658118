#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "formats/atom.h"
#include "formats/e4m3.h"
#include "lib/methods/quantized_group.h"
#include "lib/threads/interrupt.h"
#include "lib/validate/expected_quantization.h"
#include "lib/validate/expected_rows.h"
#include "lib/validate/proof.h"
#include "lib/validate/rederive.h"

namespace twofour {
namespace {

using Floats = std::vector<float>;
using Bytes = std::vector<uint8_t>;

Bytes bytes_of(const Floats& values) {
  Bytes bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

float float_in(const Bytes& bytes, size_t i) {
  float value = 0;
  std::memcpy(&value, &bytes[i / sizeof(value) * sizeof(value)], sizeof(value));
  return value;
}

/// Derives the output of one group of matrices again and compares the artifact with it.
class GroupCheck {
 public:
  GroupCheck(const QuantizedGroup& group, Proof& proof)
      : group_(group),
        proof_(proof),
        source_(proof.source),
        words_(group.encode_rule().words),
        divides_(divides_in(group.encode_rule().dialect->name)),
        prunes_(expects_2_4(words_.pattern)),
        reader_(proof.source),
        results_(group.matrices().size()) {
    if (!is_fp8()) rule_ = expected_rule(words_.arithmetic, words_.block_scale, words_.zero_block);
  }

  std::vector<EncodedResult> run() {
    const auto all = [&](auto&& f) {
      for (size_t i = 0; i < results_.size(); ++i) f(group_.matrices()[i], results_[i]);
    };
    float largest = 0;
    all([&](const EncodedMatrix& m, EncodedResult& r) { largest = std::max(largest, survey(m, r)); });
    if (is_fp8()) {
      all([&](const EncodedMatrix& m, EncodedResult& r) { check_fp8(m, r); });
    } else if (const auto exponent = cast_exponent()) {
      all([&](const EncodedMatrix& m, EncodedResult& r) { check_cast(m, *exponent, r); });
    } else {
      rule_.weight_type = matrix_weight_type(source_, group_.matrices());
      all([&](const EncodedMatrix& m, EncodedResult& r) { check_nvfp4(m, largest, r); });
    }
    all([&](const EncodedMatrix& m, EncodedResult&) { check_bias(m); });
    for (const auto& [part, wrong] : wrong_) {
      proof_.differ(part, fmt::format("{} bytes differ from those derived from the source, the first at {}",
                                      wrong.count, wrong.first));
    }
    for (std::string& text : not_finite_) proof_.differ("weights", group_.matrices()[0].name, text);
    return std::move(results_);
  }

 private:
  bool is_fp8() const { return group_.encode_rule().to == "fp8"; }

  template <class F>
  void for_each_row_block(const EncodedMatrix& m, F&& f) {
    const int64_t step = group_.strip_rows(*m.source);
    for (int64_t row = 0; row < m.rows; row += step) {
      check_interrupt();
      f(row, std::min(row + step, m.rows));
    }
  }

  /// Calls f(weights, n, row) for each row of a row block, n counted in the matrix, on all threads.
  template <class F>
  static void for_each_row(const EncodedMatrix& m, int64_t begin, const Floats& weights, F&& f) {
    const auto k = static_cast<size_t>(m.k);
    const auto count = static_cast<int64_t>(weights.size() / k);
#pragma omp parallel for schedule(static)
    for (int64_t r = 0; r < count; ++r) {
      f(std::span(weights).subspan(static_cast<size_t>(r) * k, k), begin + r, static_cast<size_t>(r));
    }
  }

  Floats rows(const EncodedMatrix& m, int64_t begin, int64_t end) {
    return matrix_weights(source_, reader_, m, begin, end);
  }

  /// The hash of a matrix's weights in float32; returns their largest magnitude.
  float survey(const EncodedMatrix& m, EncodedResult& result) {
    Hasher hasher;
    float largest = 0;
    for_each_row_block(m, [&](int64_t begin, int64_t end) {
      const Floats weights = rows(m, begin, end);
      hasher.update({reinterpret_cast<const uint8_t*>(weights.data()), weights.size() * sizeof(float)});
      int32_t here = 0;  // magnitudes sort as their bits do, infinity and NaN above all
      const auto count = static_cast<int64_t>(weights.size());
#pragma omp parallel for simd schedule(static) reduction(max : here)
      for (int64_t i = 0; i < count; ++i) {
        here = std::max(here, std::bit_cast<int32_t>(weights[static_cast<size_t>(i)]) & INT32_MAX);
      }
      const auto magnitude = std::bit_cast<float>(here);
      const bool finite = std::isfinite(magnitude);
      if (!finite && not_finite_.empty()) {
        const auto at =
            std::find_if(weights.begin(), weights.end(), [](float x) { return !std::isfinite(x); });
        not_finite_.push_back(fmt::format("{}: expected finite weights, found {} at row {}, k {}", m.name,
                                          *at, begin + (at - weights.begin()) / m.k,
                                          (at - weights.begin()) % m.k));
      }
      if (finite) largest = std::max(largest, magnitude);
    });
    result.source = hasher.digest();
    return largest;
  }

  /// Compares bytes of a part from `begin` on; `place(i, found)` says where byte i of them is and what
  /// differs.
  template <class F>
  void compare(int part, int64_t begin, const Bytes& expected, F&& place) {
    Bytes found(expected.size());
    proof_.read(part, static_cast<uint64_t>(begin), found);
    proof_.progress.done += 2 * found.size();
    if (found == expected) return;
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i] == expected[i]) continue;
      Wrong& wrong = wrong_[part];
      if (wrong.count++ > 0) continue;
      wrong.first = fmt::format("{} ({}", begin + static_cast<int64_t>(i), place(i, found));
    }
  }

  /// Compares the rows of a matrix; `per_byte` is the number of weights in a byte.
  void hold(const EncodedMatrix& m, EncodedPart part, int64_t begin, const Bytes& expected,
            int64_t per_byte) {
    compare(m.part(part), begin, expected, [&](size_t i, const Bytes& found) {
      const int64_t weight = (begin + static_cast<int64_t>(i)) * per_byte;
      return fmt::format("row {}, k {}): expected 0x{:02X}, found 0x{:02X}", weight / m.k, weight % m.k,
                         expected[i], found[i]);
    });
  }
  void hold(const EncodedMatrix& m, EncodedPart part, const Floats& values) {
    const Bytes expected = bytes_of(values);
    compare(m.part(part), 0, expected, [&](size_t i, const Bytes& found) {
      return fmt::format("element {}): expected {}, found {}", i / sizeof(float), float_in(expected, i),
                         float_in(found, i));
    });
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
    for_each_row_block(m, [&](int64_t begin, int64_t end) {
      const Floats weights = rows(m, begin, end);
      const auto k = static_cast<size_t>(m.k);
      Bytes codes(weights.size() / 2), scales(weights.size() / kGroup);
      Floats pruned(prunes_ ? weights.size() : 0), back(weights.size());
      std::vector<RowError> errors(weights.size() / k), after(errors.size());
      for_each_row(m, begin, weights, [&](std::span<const float> row, int64_t, size_t r) {
        const auto row_codes = std::span(codes).subspan(r * k / 2, k / 2);
        const auto row_scales = std::span(scales).subspan(r * k / kGroup, k / kGroup);
        const auto values = std::span(back).subspan(r * k, k);
        const auto read_back = [&] {
          expected_values(row_codes, row_scales, global.written, divides_, values);
          return row_error(row, values);
        };
        std::span<const float> kept_weights = row;
        if (prunes_) {
          // The error of quantizing first and pruning afterwards.
          unpruned.quantize(row, row_codes, row_scales);
          expect_2_4(row_codes);
          after[r] = read_back();
          const auto own_row = std::span(pruned).subspan(r * k, k);
          std::copy(row.begin(), row.end(), own_row.begin());
          expect_2_4(own_row);
          kept_weights = own_row;
        }
        expected.quantize(kept_weights, row_codes, row_scales);
        errors[r] = read_back();
      });
      add(errors, result.error);
      if (prunes_) add(after, result.pruned_after);
      hold(m, EncodedPart::kValues, begin * m.k / 2, codes, 2);
      hold(m, EncodedPart::kScales, begin * m.k / kGroup, scales, kGroup);
    });
  }

  static void add(const std::vector<RowError>& rows, EncodeError& sum) {
    for (const RowError& row : rows) {
      sum.energy += row.energy;
      sum.error += row.error;
    }
  }

  void check_fp8(const EncodedMatrix& m, EncodedResult& result) {
    const ExpectedBlock block = expected_block(words_.granularity, m.rows, m.k);
    const int64_t rows_of_scale = block.rows;
    const auto width = static_cast<size_t>(block.width);
    const size_t across = (static_cast<size_t>(m.k) + width - 1) / width;
    const auto first_scale = [&](int64_t n) { return static_cast<size_t>(n / rows_of_scale) * across; };
    Floats scales(first_scale(m.rows - 1) + across);
    for_each_row_block(m, [&](int64_t begin, int64_t end) {
      Floats largest(static_cast<size_t>(end - begin) * across);
      for_each_row(m, begin, rows(m, begin, end), [&](std::span<const float> row, int64_t, size_t r) {
        for (size_t b = 0; b < across; ++b) {
          float& own = largest[r * across + b];
          for (size_t k = b * width; k < std::min((b + 1) * width, row.size()); ++k) {
            own = std::max(own, std::fabs(row[k]));
          }
        }
      });
      for (size_t i = 0; i < largest.size(); ++i) {
        float& scale = scales[first_scale(begin + static_cast<int64_t>(i / across)) + i % across];
        scale = std::max(scale, largest[i]);
      }
    });
    for (float& scale : scales) scale = expected_fp8_scale(scale);
    hold(m, EncodedPart::kScales, scales);
    check_input_scale(m);
    for_each_row_block(m, [&](int64_t begin, int64_t end) {
      const Floats weights = rows(m, begin, end);
      Bytes bytes(weights.size());
      Floats back(weights.size());
      std::vector<RowError> errors(static_cast<size_t>(end - begin));
      for_each_row(m, begin, weights, [&](std::span<const float> row, int64_t n, size_t r) {
        const auto row_bytes = std::span(bytes).subspan(r * row.size(), row.size());
        const auto values = std::span(back).subspan(r * row.size(), row.size());
        for (size_t b = 0; b < across; ++b) {
          const float scale = scales[first_scale(n) + b];
          for (size_t k = b * width; k < std::min((b + 1) * width, row.size()); ++k) {
            row_bytes[k] = expected_fp8(row[k], scale);
            values[k] = e4m3_to_float(row_bytes[k]) * scale;
          }
        }
        errors[r] = row_error(row, values);
      });
      add(errors, result.error);
      hold(m, EncodedPart::kValues, begin * m.k, bytes, 1);
    });
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

  Bytes stored(const EncodedMatrix& m, size_t tensor, int64_t width, int64_t begin, int64_t end) {
    return matrix_bytes(source_, m, tensor, width, begin, end);
  }

  /// The exponent of the global scale under which all MXFP4 weights of the group are exact.
  std::optional<int> cast_exponent() {
    CastRange range;
    for (const EncodedMatrix& m : group_.matrices()) {
      const Linear& w = *m.source;
      if (w.format != WeightFormat::kMxfp4 || prunes_ || group_.kept().find(m.name)) return {};
      for_each_row_block(m, [&](int64_t begin, int64_t end) {
        range.add(stored(m, w.weight, m.k / 2, begin, end), stored(m, *w.scale, m.k / kMxGroup, begin, end));
      });
    }
    return range.exponent();
  }

  void check_cast(const EncodedMatrix& m, int exponent, EncodedResult& result) {
    const Linear& w = *m.source;
    const float global = std::ldexp(1.0f, divides_ ? -exponent : exponent);
    hold(m, EncodedPart::kGlobalScale, {global});
    result.global_scale = std::bit_cast<uint32_t>(global);
    result.cast = true;
    for_each_row_block(m, [&](int64_t begin, int64_t end) {
      const Floats weights = rows(m, begin, end);
      std::vector<RowError> errors(static_cast<size_t>(end - begin));
      for_each_row(m, begin, weights,
                   [&](std::span<const float> row, int64_t, size_t r) { errors[r] = row_error(row, row); });
      add(errors, result.error);
      hold(m, EncodedPart::kValues, begin * m.k / 2, stored(m, w.weight, m.k / 2, begin, end), 2);
      Bytes scales;
      for (const uint8_t byte : stored(m, *w.scale, m.k / kMxGroup, begin, end)) {
        scales.insert(scales.end(), 2, expected_cast_scale(byte, exponent));
      }
      hold(m, EncodedPart::kScales, begin * m.k / kGroup, scales, kGroup);
    });
  }

  void check_bias(const EncodedMatrix& m) {
    if (m.part(EncodedPart::kBias) < 0) return;
    const size_t bias = *m.source->bias;
    const int64_t width = dtype_bits(source_.tensors()[bias].dtype) / 8;
    const Bytes expected = stored(m, bias, width, 0, m.rows);
    compare(m.part(EncodedPart::kBias), 0, expected, [&](size_t i, const Bytes& found) {
      return fmt::format("row {}): expected 0x{:02X}, found 0x{:02X}", static_cast<int64_t>(i) / width,
                         expected[i], found[i]);
    });
  }

  const QuantizedGroup& group_;
  Proof& proof_;
  const Checkpoint& source_;
  const EncodeRule::Words& words_;
  const bool divides_, prunes_;
  ExpectedRule rule_;
  WeightReader reader_;
  std::vector<EncodedResult> results_;
  struct Wrong {
    uint64_t count = 0;
    std::string first;  ///< its place and both values
  };
  std::map<int, Wrong> wrong_;  ///< by part
  std::vector<std::string> not_finite_;
};

}  // namespace

Json QuantizedGroup::prove(Proof& proof) const {
  Json result = Json::array();
  for (const EncodedResult& r : GroupCheck(*this, proof).run()) result.push_back(to_json(r));
  return result;
}

}  // namespace twofour
