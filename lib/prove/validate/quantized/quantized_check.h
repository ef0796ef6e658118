#pragma once
#include <memory>
#include <vector>

#include "lib/prove/expected/expected_fp8_mx.h"
#include "lib/prove/validate/quantized/group_reader.h"

namespace twofour {

/// Derives the output of one group of matrices again and compares the artifact with it. Each number format
/// has a derived class.
class QuantizedCheck : protected GroupReader {
 public:
  QuantizedCheck(const QuantizedGroup& group, Proof& proof);
  virtual ~QuantizedCheck() = default;

  /// Checks the matrices and reports differences. Returns a result for each matrix.
  std::vector<EncodedResult> run();

 protected:
  /// The largest magnitude of a matrix that is to be quantized. Also sets the hash of its weights.
  virtual float largest_of(const EncodedMatrix& m, EncodedResult& result) { return survey(m, result); }
  /// Prepares the checks, before check(). `largest` is the largest magnitude of all matrices.
  virtual void prepare(float largest) = 0;
  /// Compares codes and scales.
  virtual void check(const EncodedMatrix& m, EncodedResult& result) = 0;
  virtual void check_input_scale(const EncodedMatrix&) {}

  /// True if values of a four-bit source stay the same if the output format can represent them. That is the
  /// case for MXFP4 under every rule, and for NVFP4 under FP8.
  bool casts(const EncodedMatrix& m) const;
  /// The float32 of a tensor of the source. The tensor has one value for all experts or one value per expert.
  float source_scalar(size_t tensor, const EncodedMatrix& m) const;

  const EncodeRule& encode_rule_;
  const Rule& rule_;
};

std::unique_ptr<QuantizedCheck> make_fp8_check(const QuantizedGroup& group, Proof& proof);
std::unique_ptr<QuantizedCheck> make_mx_check(const QuantizedGroup& group, Proof& proof, ExpectedMx format);
std::unique_ptr<QuantizedCheck> make_nvfp4_check(const QuantizedGroup& group, Proof& proof);

}  // namespace twofour
