#include "formats/e2m1.h"
#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/weight_format.h"
#include "lib/prove/validate/quantized/solved_check.h"

namespace twofour {
namespace {

/// The check of MXFP8, MXFP6 and MXFP4.
class MxCheck : public SolvedCheck {
 public:
  MxCheck(const QuantizedGroup& group, Proof& proof, ExpectedMx format)
      : SolvedCheck(group, proof),
        format_(format),
        weight_type_(matrix_weight_type(source_, group.matrices())) {}

 private:
  void prepare(float) override {}
  void check(const EncodedMatrix& m, EncodedResult& result) override {
    if (casts(m)) return check_cast(m, result);
    is_solved(m) ? check_solved(m, solved_form(m), result) : check_quantized(m, result);
  }

  /// The form of a matrix that statistics solved.
  Solved solved_form(const EncodedMatrix& m) const {
    Solved form{.solver = solver_of(m), .decode = {}};
    use_format(form.solver, encode_rule_.to);
    form.bits = format_ == ExpectedMx::kMxfp8 ? 8 : format_ == ExpectedMx::kMxfp6 ? 6 : 4;
    form.block = kMxGroup;
    const Floats zeros(kMxGroup);
    Bytes codes(kMxGroup);
    form.solver.zero_scale = expect_mx_block(format_, rule_.arithmetic.text(), weight_type_, zeros, codes);
    form.decode = [this, bits = form.bits](std::span<const uint8_t> own, std::span<const uint8_t> scales,
                                           int64_t, std::span<float> values) {
      for (size_t i = 0; i < values.size(); ++i) {
        unsigned code = 0;
        for (size_t bit = 0; bit < bits; ++bit)
          code |= (own[(i * bits + bit) / 8] >> (i * bits + bit) % 8 & 1u) << bit;
        values[i] = number_of(static_cast<uint8_t>(code)) * e8m0_to_float(scales[i / kMxGroup]);
      }
    };
    return form;
  }

  /// Quantizes a matrix again and compares it. Each weight has one byte until codes are packed.
  void check_quantized(const EncodedMatrix& m, EncodedResult& result) {
    for_each_row_block(m, [&](int64_t begin, int64_t end) {
      const Floats weights = rows(m, begin, end);
      Bytes codes(weights.size()), scales(weights.size() / kMxGroup);
      Floats back(weights.size());
      std::vector<RowError> errors(static_cast<size_t>(end - begin));
      std::vector<uint64_t> lost(errors.size());
      for_each_row(m, begin, weights, [&](std::span<const float> row, int64_t, size_t r) {
        for (size_t k = 0; k < row.size(); k += kMxGroup) {
          const size_t at = r * row.size() + k;
          const auto own = std::span(codes).subspan(at, kMxGroup);
          const uint8_t scale =
              expect_mx_block(format_, rule_.arithmetic.text(), weight_type_, row.subspan(k, kMxGroup), own);
          scales[at / kMxGroup] = scale;
          for (size_t i = 0; i < own.size(); ++i) {
            back[at + i] = number_of(own[i]) * e8m0_to_float(scale);
          }
          lost[r] += expected_lost_mx(rule_.arithmetic.text(), weight_type_, row.subspan(k, kMxGroup),
                                      std::span(back).subspan(at, kMxGroup));
        }
        errors[r] = row_error(row, std::span(back).subspan(r * row.size(), row.size()));
      });
      add(errors, result.error);
      for (const uint64_t of_row : lost) result.lost += of_row;
      hold(m, EncodedPart::kScales, begin * m.k / kMxGroup, scales, kMxGroup);
      hold_codes(m, begin, codes);
    });
  }

  float number_of(uint8_t code) const {
    return format_ == ExpectedMx::kMxfp8   ? e4m3_to_float(code)
           : format_ == ExpectedMx::kMxfp6 ? e2m3_to_float(code)
                                           : e2m1_to_float(code);
  }

  /// Compares codes, one a byte, of rows from `begin` on with the stored ones.
  void hold_codes(const EncodedMatrix& m, int64_t begin, const Bytes& codes) {
    if (format_ == ExpectedMx::kMxfp8) {
      hold(m, EncodedPart::kValues, begin * m.k, codes, 1);
      return;
    }
    if (format_ == ExpectedMx::kMxfp6) {
      Bytes packed(codes.size() / 4 * 3);  // bit i of code j is bit 6 j + i
      for (size_t bit = 0; bit < 6 * codes.size(); ++bit) {
        if (codes[bit / 6] >> bit % 6 & 1)
          packed[bit / 8] = static_cast<uint8_t>(packed[bit / 8] | 1u << bit % 8);
      }
      hold(m, EncodedPart::kValues, begin * m.k / 4 * 3, packed, 4, 3);
      return;
    }
    Bytes packed(codes.size() / 2);
    for (size_t i = 0; i < packed.size(); ++i) {
      packed[i] = static_cast<uint8_t>(codes[2 * i] | codes[2 * i + 1] << 4);
    }
    hold(m, EncodedPart::kValues, begin * m.k / 2, packed, 2);
  }

  /// Checks MXFP4 in another dialect's spelling, or its codes as E4M3 under the same scales.
  void check_cast(const EncodedMatrix& m, EncodedResult& result) {
    result.cast = true;
    for_each_row_block(m, [&](int64_t begin, int64_t end) {
      add_exact(m, begin, end, result);
      StoredCopy from = stored_fp4(m, begin, end);
      hold(m, EncodedPart::kScales, begin * m.k / kMxGroup, from.scales, kMxGroup);
      if (format_ == ExpectedMx::kMxfp4) {
        hold(m, EncodedPart::kValues, begin * m.k / 2, from.codes, 2);
        return;
      }
      Bytes values;
      for (const uint8_t byte : from.codes) {
        for (const unsigned code : {byte & 15u, byte >> 4 & 15u}) {
          unsigned wide = e4m3_from_float(e2m1_to_float(code));
          // E2M3 counts eighths below 2, quarters below 4 and halves from there on.
          constexpr unsigned kSixes[] = {0, 4, 8, 12, 16, 20, 24, 28};
          if (format_ == ExpectedMx::kMxfp6) wide = kSixes[code % 8] | (code & 8u) << 2;
          values.push_back(static_cast<uint8_t>(wide));
        }
      }
      hold_codes(m, begin, values);
    });
  }

  /// Adds the figures of rows that do not change.
  void add_exact(const EncodedMatrix& m, int64_t begin, int64_t end, EncodedResult& result) {
    std::vector<RowError> errors(static_cast<size_t>(end - begin));
    for_each_row(m, begin, rows(m, begin, end),
                 [&](std::span<const float> row, int64_t, size_t r) { errors[r] = row_error(row, row); });
    add(errors, result.error);
  }

  const ExpectedMx format_;
  const DType weight_type_;
};

}  // namespace

std::unique_ptr<QuantizedCheck> make_mx_check(const QuantizedGroup& group, Proof& proof, ExpectedMx format) {
  return std::make_unique<MxCheck>(group, proof, format);
}

}  // namespace twofour
