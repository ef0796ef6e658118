#pragma once
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/numbers/casts.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/checkpoint/linears.h"
#include "lib/methods/quantized_group.h"
#include "lib/methods/quantized_view.h"
#include "lib/metrics/quality.h"
#include "lib/transform/encode_scale.h"
#include "lib/transform/reference_checkpoint.h"

namespace twofour {

/// Quantizes groups of matrices to NVFP4 or FP8, row block by row block in bounded memory. The first pass
/// finds the largest magnitudes, the second computes the bytes. A group of one row block is read once. Use
/// one encoder per thread.
class Encoder {
 public:
  explicit Encoder(const Worker& worker)
      : source_(worker.source), kept_(worker.kept), isa_(worker.isa), reader_(worker.source) {}

  /// Receives the bytes of a part of the group (an index into its parts) in order, front to back.
  using Write = std::function<void(int part, std::span<const uint8_t> bytes)>;
  /// Quantizes a group and returns a result for each of its matrices. Writes nothing if a result has problems
  /// or with `only_check`. Throws Error on I/O errors.
  std::vector<EncodedResult> encode(const QuantizedGroup& group, const Write& write, bool only_check = false);
  /// The first pass alone, of NVFP4. Throws Error where a matrix cannot be quantized.
  GroupScale first_pass(const QuantizedGroup& group);
  uint64_t bytes_read() const { return reader_.bytes_read() + bytes_read_; }

 private:
  /// The result of the first pass over a matrix.
  struct AbsMaxPass {
    float amax = 0;
    std::vector<float> scales;  ///< FP8: largest magnitudes, then scales
    MatrixScale scale;          ///< NVFP4
  };

  // --- Reading ---
  template <class F>
  void for_each_source(F&& f);
  /// Calls f(matrix, row, rows) for row blocks of each matrix, in order.
  template <class F>
  void for_each_row_block(F&& f);
  std::span<const float> read(const Linear& module, int64_t expert, int64_t begin, int64_t end);

  // --- First pass ---
  void begin(const QuantizedGroup& group);
  void survey(std::vector<EncodedResult>& results);
  void survey_fp8(const EncodedMatrix& matrix, int64_t row, std::span<const float> rows, AbsMaxPass& survey);
  bool can_cast() const;
  /// Whether the whole group can be cast from MXFP4 without loss, by the exponents of its blocks.
  bool survey_mxfp4(std::vector<EncodedResult>& results);
  void read_mxfp4(const EncodedMatrix& matrix, int64_t begin, int64_t end);
  void choose_global_scales(std::vector<EncodedResult>& results);
  void check_global_scale(const std::string& name, float amax, const MatrixScale& scale,
                          EncodedResult& result) const;

  // --- Second pass ---
  void encode_nvfp4(const EncodedMatrix& matrix, const AbsMaxPass& survey, int64_t row,
                    std::span<const float> rows, const Write& write, EncodedResult& result);
  void encode_fp8(const EncodedMatrix& matrix, const AbsMaxPass& survey, int64_t row,
                  std::span<const float> rows, const Write& write, EncodedResult& result);
  void cast_mxfp4(const Write& write);
  void write_scalars(const EncodedMatrix& matrix, const AbsMaxPass& survey, const Write& write);
  void write_bias(const EncodedMatrix& matrix, const Write& write);

  const Checkpoint& source_;
  const ReferenceCheckpoint* const kept_;
  const Isa isa_;
  const QuantizedGroup* group_ = nullptr;  ///< that is quantized
  EncodeRule rule_{};                      ///< of the group
  QuantizeRule quantize_{};                ///< likewise
  WeightReader reader_;
  std::vector<AbsMaxPass> surveys_;
  Mxfp4Range range_;
  struct RowBlock {
    const Linear* module = nullptr;
    int64_t expert = 0, begin = 0, end = 0;
    bool operator==(const RowBlock&) const = default;
  } held_;  ///< what `rows_` holds
  std::vector<float> rows_, gathered_, pruned_, back_;
  std::vector<uint8_t> codes_, scales_, raw_codes_, raw_scales_, gathered_bytes_;
  uint64_t bytes_read_ = 0;
};

}  // namespace twofour
