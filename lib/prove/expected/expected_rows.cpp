#include "lib/prove/expected/expected_rows.h"

#include <fmt/format.h>
#include <xtensor/xadapt.hpp>
#include <xtensor/xnoalias.hpp>
#include <xtensor/xview.hpp>

#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "lib/base/threads/interrupt.h"
#include "lib/prove/expected/expected_quantization.h"
#include "lib/prove/expected/rederive.h"

namespace twofour {
namespace {

/// The number of weights that share a block scale in MXFP4.
constexpr int64_t kCastBlock = 32;

/// Every `step`-th row from the first to the last. Rows have `width` numbers.
template <class T>
std::vector<T> every(std::span<const T> all, int64_t width, int64_t step) {
  const auto columns = static_cast<size_t>(width), by = static_cast<size_t>(step);
  const auto rows = xt::adapt(all.data(), {all.size() / columns, columns});
  auto own = xt::xtensor_container<std::vector<T>, 2>::from_shape({(rows.shape(0) + by - 1) / by, columns});
  for (size_t r = 0; r < own.shape(0); ++r) xt::noalias(xt::view(own, r)) = xt::view(rows, r * by);
  return std::move(own.storage());
}

class SlowRowQuantizer : public RowQuantizer {
 public:
  SlowRowQuantizer(const Checkpoint& source, const ExpectSolvedGroup& solved)
      : source_(source), solved_(solved), reader_(source) {}

  QuantizedRows quantize(const QuantizedGroup& group) override { return solved_(source_, group); }

  GroupScale survey(const QuantizedGroup& group) override {
    GroupScale scale;
    CastRange range;
    const Rule& settings = *group.encode_rule().settings;
    bool may_cast = !expects_2_4(settings.pattern.text()) && settings.exact.text() != "off";
    for (const EncodedMatrix& m : group.matrices()) {
      may_cast = may_cast && m.source->format == WeightFormat::kMxfp4;
      for_each_strip(group, m, {0, m.rows, 0, m.k}, [&](const RowRange& rows) {
        const std::vector<float> weights = matrix_weights(source_, reader_, m, rows.begin, rows.end);
        for (const float x : weights) {
          if (!std::isfinite(x)) refuse(m, weights, rows.begin);
          scale.amax = std::max(scale.amax, std::fabs(x));
        }
        if (!may_cast) return;
        const StoredCopy stored = matrix_fp4(reader_, m, rows.begin, rows.end);
        range.add(stored.codes, stored.scales);
      });
    }
    const bool divides = divides_in(group.encode_rule().dialect->name);
    if (may_cast) scale.exponent = range.exponent();
    scale.written = scale.exponent ? std::ldexp(1.0f, divides ? -*scale.exponent : *scale.exponent)
                                   : expected_global(rule_of(group), scale.amax, divides).written;
    return scale;
  }

  void rewrite(const TensorRewrite& tensor, uint64_t begin, std::span<uint8_t> out) override {
    const auto expected = tensor.expect(source_);
    expected->load(begin, begin + out.size());
    for (size_t i = 0; i < out.size(); ++i) out[i] = expected->byte_at(begin + i);
  }

  void quantize(const QuantizedGroup& group, const GroupScale& scale, size_t matrix, const RowRange& rows,
                std::span<uint8_t> codes, std::span<uint8_t> scales) override {
    const EncodedMatrix& m = group.matrices()[matrix];
    const EncodeRule& encode_rule = group.encode_rule();
    const auto inputs = static_cast<size_t>(rows.k1 - rows.k0), k = static_cast<size_t>(m.k),
               k0 = static_cast<size_t>(rows.k0);
    const bool divides = divides_in(encode_rule.dialect->name),
               prunes = expects_2_4(encode_rule.settings->pattern.text());
    const ExpectedRule rule = rule_of(group);
    const ExpectedNvfp4 expected(rule, expected_global(rule, scale.amax, divides));
    for_each_strip(group, m, rows, [&](const RowRange& some) {
      const auto first = static_cast<size_t>(some.begin - rows.begin),
                 count = static_cast<size_t>(some.end - some.begin);
      const auto own_codes = codes.subspan(first * inputs / 2, count * inputs / 2);
      const auto own_scales = scales.subspan(first * inputs / kGroup, count * inputs / kGroup);
      if (scale.exponent) return cast(m, *scale.exponent, some, own_codes, own_scales);
      std::vector<float> weights = matrix_weights(source_, reader_, m, some.begin, some.end);
      const auto rows_of_strip = static_cast<int64_t>(count);
#pragma omp parallel for schedule(static)
      for (int64_t row = 0; row < rows_of_strip; ++row) {
        const auto r = static_cast<size_t>(row);
        const auto of_row = std::span(weights).subspan(r * k + k0, inputs);
        if (prunes) expect_2_4(of_row);
        expected.quantize(of_row, own_codes.subspan(r * inputs / 2, inputs / 2),
                          own_scales.subspan(r * inputs / kGroup, inputs / kGroup));
      }
    });
  }

 private:
  template <class F>
  static void for_each_strip(const QuantizedGroup& group, const EncodedMatrix& m, const RowRange& rows,
                             F&& f) {
    const int64_t step = group.strip_rows(*m.source);
    for (int64_t row = rows.begin; row < rows.end; row += step) {
      check_interrupt();
      f(RowRange{row, std::min(row + step, rows.end), rows.k0, rows.k1});
    }
  }

  ExpectedRule rule_of(const QuantizedGroup& group) const {
    const Rule& settings = *group.encode_rule().settings;
    ExpectedRule rule =
        expected_rule(settings.arithmetic.text(), settings.block_scale.text(), settings.zero_block.text());
    rule.weight_type = matrix_weight_type(source_, group.matrices());
    return rule;
  }

  void cast(const EncodedMatrix& m, int exponent, const RowRange& rows, std::span<uint8_t> codes,
            std::span<uint8_t> scales) {
    const auto [all_codes, powers] = matrix_fp4(reader_, m, rows.begin, rows.end);
    auto code = codes.begin();
    auto scale = scales.begin();
    for (int64_t r = 0; r < rows.end - rows.begin; ++r) {
      for (int64_t i = r * m.k + rows.k0; i < r * m.k + rows.k1; i += 2) {
        const uint8_t both = all_codes[static_cast<size_t>(i / 2)],
                      power = powers[static_cast<size_t>(i / kCastBlock)];
        *code++ = static_cast<uint8_t>(expected_cast_code(both & 15u, power, exponent) |
                                       expected_cast_code(both >> 4u, power, exponent) << 4);
      }
      for (int64_t i = (r * m.k + rows.k0) / kCastBlock; i < (r * m.k + rows.k1) / kCastBlock; ++i) {
        scale = std::fill_n(scale, 2, expected_cast_scale(powers[static_cast<size_t>(i)], exponent));
      }
    }
  }

  [[noreturn]] void refuse(const EncodedMatrix& m, const std::vector<float>& weights, int64_t first) const {
    const auto at = std::find_if(weights.begin(), weights.end(), [](float x) { return !std::isfinite(x); });
    const int64_t place = at - weights.begin();
    throw Error(fmt::format("{}: expected finite weights, found {} at row {}, k {}", m.name, *at,
                            first + place / m.k, place % m.k));
  }

  const Checkpoint& source_;
  const ExpectSolvedGroup solved_;
  WeightReader reader_;
};

}  // namespace

std::vector<float> matrix_weights(const Checkpoint& source, WeightReader& reader, const EncodedMatrix& m,
                                  int64_t begin, int64_t end) {
  const int64_t first = m.first + begin * m.step, last = m.first + (end - 1) * m.step;
  std::vector<float> all = derive_weights(source, reader, *m.source, m.expert, first, last + 1);
  if (m.step == 1) return all;
  return every<float>(all, m.k, m.step);
}

std::vector<uint8_t> matrix_bytes(const Checkpoint& source, const EncodedMatrix& m, size_t tensor,
                                  int64_t width, int64_t begin, int64_t end) {
  const int64_t first = m.expert * m.source->n + m.first + begin * m.step;
  std::vector<uint8_t> all(static_cast<size_t>(((end - begin - 1) * m.step + 1) * width));
  source.read(tensor, static_cast<uint64_t>(first * width), all);
  if (m.step == 1) return all;
  return every<uint8_t>(all, width, m.step);
}

StoredCopy matrix_fp4(WeightReader& reader, const EncodedMatrix& m, int64_t begin, int64_t end) {
  const int64_t first = m.first + begin * m.step, last = m.first + (end - 1) * m.step;
  const StoredRows all = reader.read_stored(*m.source, m.expert, first, last + 1);
  return {every(all.weights, m.k / 2, m.step), every(all.scales, m.k / m.source->scale_cols, m.step)};
}

DType matrix_weight_type(const Checkpoint& source, const std::vector<EncodedMatrix>& matrices) {
  const auto type_of = [&](const EncodedMatrix& m) {
    return !m.source->format->coded ? source.tensors()[m.source->weight].dtype : DType::kF32;
  };
  const DType type = type_of(matrices[0]);
  const bool same = std::all_of(matrices.begin(), matrices.end(),
                                [&](const EncodedMatrix& m) { return type_of(m) == type; });
  return same ? type : DType::kF32;
}

bool divides_in(std::string_view dialect) {
  const auto all = nvfp4_dialects();
  return std::any_of(all.begin(), all.end(),
                     [&](const Nvfp4Dialect& d) { return d.name == dialect && !d.stacked && d.divides; });
}

MakeRowQuantizer expected_rows(ExpectSolvedGroup solved) {
  return [solved = std::move(solved)](const Checkpoint& source, int /*threads*/) {
    return std::make_unique<SlowRowQuantizer>(source, solved);
  };
}

}  // namespace twofour
