#include "lib/prove/validate/quantized/nvfp4_check.h"

#include "formats/atom.h"
#include "formats/e4m3.h"

namespace twofour {
namespace {

void expect_masked(std::span<const uint8_t> mask, std::span<uint8_t> codes) {
  for (size_t i = 0; i < mask.size(); ++i) {
    if (mask[i] == 0) codes[i / 2] &= i % 2 == 0 ? 0xF0 : 0x0F;
  }
}

}  // namespace

Nvfp4Check::Nvfp4Check(const QuantizedGroup& group, Proof& proof)
    : SolvedCheck(group, proof),
      divides_(divides_in(encode_rule_.dialect->name)),
      prunes_(rule_.pattern.text() != "4:8-paired" && expects_2_4(rule_.pattern.text())),
      arithmetic_(expected_rule(rule_.arithmetic.text(), rule_.block_scale.text(), rule_.zero_block.text())) {
}

void Nvfp4Check::prepare(float largest) {
  largest_ = largest;
  arithmetic_.weight_type = matrix_weight_type(source_, group_.matrices());
  cast_ = cast_range();
}

void Nvfp4Check::check(const EncodedMatrix& m, EncodedResult& result) {
  if (cast_) return check_cast(m, *cast_, result);
  const FixedGlobalScales& kept = group_.kept();
  const FixedGlobalScales::Scale* own = kept.find(m.name);
  const ExpectedGlobal global =
      own == nullptr ? expected_global(arithmetic_, largest_, divides_)
                     : kept_global(arithmetic_, std::bit_cast<float>(own->bits), kept.divides, divides_);
  hold(m, EncodedPart::kGlobalScale, {global.written});
  result.global_scale = std::bit_cast<uint32_t>(global.written);
  if (m.solving.method != Solving::Method::kPlain && !global.all_zero && can_solve(global.written))
    return check_solved(m, solved_form(m, global), result);
  if (encode_rule_.in_place && encode_rule_.masks) return check_masked(m, global, result);
  check_quantized(m, global, result);
}

void Nvfp4Check::check_quantized(const EncodedMatrix& m, const ExpectedGlobal& global,
                                 EncodedResult& result) {
  ExpectedGlobal plain_global = global;
  plain_global.keeps_negative = false;
  const ExpectedNvfp4 expected(arithmetic_, global), unpruned(arithmetic_, plain_global);
  const bool prunes = prunes_ || encode_rule_.masks;
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
      const auto error_now = [&] {
        expected_values(row_codes, row_scales, global.written, divides_, values);
        return row_error(row, values);
      };
      std::span<const float> kept_weights = row;
      if (prunes) {
        // Adds the error of quantizing first and pruning afterwards.
        unpruned.quantize(row, row_codes, row_scales);
        const auto row_mask = std::span(mask).subspan(mask.empty() ? 0 : r * k, mask.empty() ? 0 : k);
        mask.empty() ? expect_2_4(row_codes) : expect_masked(row_mask, row_codes);
        after[r] = error_now();
        const auto own_row = std::span(pruned).subspan(r * k, k);
        std::copy(row.begin(), row.end(), own_row.begin());
        if (mask.empty()) expect_2_4(own_row);
        for (size_t i = 0; i < row_mask.size(); ++i) own_row[i] = row_mask[i] == 1 ? row[i] : 0.0f;
        kept_weights = own_row;
      }
      expected.quantize(kept_weights, row_codes, row_scales);
      errors[r] = error_now();
    });
    add(errors, result.error);
    if (prunes) add(after, result.pruned_after);
    hold(m, EncodedPart::kValues, begin * m.k / 2, codes, 2);
    hold(m, EncodedPart::kScales, begin * m.k / kGroup, scales, kGroup);
  });
}

void Nvfp4Check::check_masked(const EncodedMatrix& m, const ExpectedGlobal& global, EncodedResult& result) {
  for_each_row_block(m, [&](int64_t begin, int64_t end) {
    StoredCopy from = stored_fp4(m, begin, end);
    expect_masked(mask_rows(m, begin, end), from.codes);
    read_back(m, begin, rows(m, begin, end), from.codes, from.scales, global.written, result.error);
    hold(m, EncodedPart::kValues, begin * m.k / 2, from.codes, 2);
    hold(m, EncodedPart::kScales, begin * m.k / kGroup, from.scales, kGroup);
  });
}

std::optional<CastRange> Nvfp4Check::cast_range() {
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

void Nvfp4Check::check_cast(const EncodedMatrix& m, const CastRange& range, EncodedResult& result) {
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
    const Floats back = read_back(m, begin, weights, codes, scales, global, result.error);
    if (range.is_exact()) return;
    for (size_t i = 0; i < weights.size(); i += kMxGroup) {
      ++result.tiles.count;
      result.tiles.inexact += !std::equal(&weights[i], &weights[i] + kMxGroup, &back[i]);
    }
  });
}

void Nvfp4Check::check_input_scale(const EncodedMatrix& m) {
  const InputScaleRule* rule = group_.input_scales().get();
  const float scale = rule ? proof_.input_scales.of(*rule, m.name).multiplier : 0;
  const bool has = m.part(EncodedPart::kInputScale) >= 0;
  if (has != (scale > 0)) {
    proof_.differ("input-scale", m.name,
                  fmt::format("expected {} input scale (the rule's settings), found {}", has ? "no" : "an",
                              has ? "one" : "none"));
  } else if (has) {
    hold(m, EncodedPart::kInputScale, {divides_ ? 1.0f / scale : scale});
  }
}

bool Nvfp4Check::can_solve(float global) const {
  for (const unsigned scale : {1u, 126u}) {
    const float value = e4m3_to_float(scale), step = divides_ ? value / global : value * global;
    if (!(step > 0) || !std::isnormal(step) || !std::isnormal(1.0f / step)) return false;
  }
  return std::isnormal(global) && std::isnormal(1.0f / global);
}

SolvedCheck::Solved Nvfp4Check::solved_form(const EncodedMatrix& m, const ExpectedGlobal& global) const {
  Solved form{.solver = solver_of(m), .decode = {}};
  form.solver.divides = divides_;
  form.solver.global = global.written;
  const Floats zeros(kGroup);
  Bytes codes(kGroup / 2), scale(1);
  ExpectedNvfp4(arithmetic_, global).quantize(zeros, codes, scale);
  form.solver.zero_scale = scale[0];
  form.decode = [this, written = global.written](
                    std::span<const uint8_t> own, std::span<const uint8_t> scales, int64_t,
                    std::span<float> values) { expected_values(own, scales, written, divides_, values); };
  return form;
}

Floats Nvfp4Check::read_back(const EncodedMatrix& m, int64_t begin, const Floats& weights, const Bytes& codes,
                             const Bytes& scales, float global, EncodeError& error) const {
  const auto k = static_cast<size_t>(m.k);
  Floats back(weights.size());
  std::vector<RowError> errors(weights.size() / k);
  for_each_row(m, begin, weights, [&](std::span<const float> row, int64_t, size_t r) {
    const auto values = std::span(back).subspan(r * k, k);
    expected_values(std::span(codes).subspan(r * k / 2, k / 2),
                    std::span(scales).subspan(r * k / kGroup, k / kGroup), global, divides_, values);
    errors[r] = row_error(row, values);
  });
  add(errors, error);
  return back;
}

std::unique_ptr<QuantizedCheck> make_nvfp4_check(const QuantizedGroup& group, Proof& proof) {
  return std::make_unique<Nvfp4Check>(group, proof);
}

}  // namespace twofour
