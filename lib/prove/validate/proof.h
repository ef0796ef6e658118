#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/threads/progress.h"
#include "lib/prove/expected/expected_input_scales.h"
#include "lib/prove/validate/solved_hessians.h"
#include "lib/prove/validate/validate.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/plan/transformation.h"

namespace twofour {

/// The findings of the proof of one transformation.
struct ProofFindings {
  Findings differences;
  std::vector<WeightReport> weights;
  uint64_t solved_rows = 0, rows_not_drawn = 0;  ///< rows of matrices that statistics solved, and rows among
                                                 ///< them that were not solved again
};

/// The proof of one transformation. It has the input, which is source and artifact, and the report.
class Proof {
 public:
  /// `parts` are the artifact's tensors that the transformation made. `found` receives the findings. Proofs
  /// that run at the same time have separate `found` and a common `expected`.
  Proof(const Checkpoint& made_from, const Checkpoint& made, std::vector<const TensorInfo*> parts,
        ExpectedInputScales& expected, Progress& on_the_way, ProofFindings& found)
      : source(made_from),
        artifact(made),
        input_scales(expected),
        progress(on_the_way),
        parts_(std::move(parts)),
        found_(found) {}

  const Checkpoint& source;
  const Checkpoint& artifact;
  ExpectedInputScales& input_scales;
  Progress& progress;
  bool on_device = false;           ///< a CUDA device derives the bytes, too
  bool all_rows = false;            ///< solve all rows of solved matrices again, instead of 64 of each
  bool zeros_are_positive = false;  ///< the artifact's sparse layout cannot store negative zeros within a
                                    ///< pattern
  std::shared_ptr<SolvedHessians> hessians = {};  ///< statistics of solved matrices

  const TensorInfo& info(int part) const { return *parts_[static_cast<size_t>(part)]; }
  /// Reads bytes of a part from the artifact. Safe to call from several threads.
  void read(int part, uint64_t offset, std::span<uint8_t> out) const;
  /// Compares the bytes of a part that begin at `offset` with the expected bytes, and notes differences.
  void hold(int part, uint64_t offset, std::span<const uint8_t> expected);
  /// Adds a difference of a part, or of another place.
  void differ(int part, std::string what);
  void differ(const char* id, std::string where, std::string what);
  /// Counts `rows` rows of a solved matrix, of which `not_drawn` were not solved again.
  void add_solved(uint64_t rows, uint64_t not_drawn) {
    found_.solved_rows += rows;
    found_.rows_not_drawn += not_drawn;
  }
  void add(WeightReport weights) { found_.weights.push_back(std::move(weights)); }
  /// Reports what hold() noted, as one difference for each part.
  void finish();

 private:
  struct Wrong {
    uint64_t count = 0, first = 0;
    uint8_t expected = 0, found = 0;
  };

  std::vector<const TensorInfo*> parts_;
  ProofFindings& found_;
  std::vector<Wrong> wrong_;  ///< by part
};

/// The hash of a range of bytes of a tensor of the source.
Hash128 hash_range_of(const Proof& proof, size_t tensor, uint64_t begin, uint64_t bytes);

}  // namespace twofour
