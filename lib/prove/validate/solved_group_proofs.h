#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "lib/prove/expected/expected_input_scales.h"
#include "lib/prove/validate/proof.h"
#include "lib/write/view/quantized_view.h"

namespace twofour {

/// Proofs of groups whose weights statistics or masks chose before a layout packed them. Only the solver can
/// make all rows of such a group, so the rows are taken from the artifact. They are unpacked byte by byte by
/// the layout's map, and compared with the source like output of `quantize` and `prune`. The proof of the
/// layout then derives the artifact's bytes from these rows.
class SolvedGroupProofs {
 public:
  /// `open` opens the artifact's stored tensors, at `artifact`.
  SolvedGroupProofs(std::filesystem::path artifact, std::function<Checkpoint()> open, bool all_rows,
                    Progress& progress)
      : path_(std::move(artifact)), open_(std::move(open)), all_rows_(all_rows), progress_(progress) {}

  /// The bytes and results of a group of `source`. Differences are stored for findings(), once per group.
  /// Throws Error if the artifact does not have the group's tensors.
  QuantizedRows prove(const Checkpoint& source, const QuantizedGroup& group);
  /// The findings of all groups so far.
  const ProofFindings& findings() const { return found_; }

 private:
  const std::filesystem::path path_;
  const std::function<Checkpoint()> open_;
  const bool all_rows_;
  Progress& progress_;
  std::mutex mutex_;
  std::unique_ptr<const Checkpoint> unpacked_;
  std::unique_ptr<ExpectedInputScales> input_scales_;
  const std::shared_ptr<SolvedHessians> hessians_ = std::make_shared<SolvedHessians>();
  std::map<std::string, Json> results_;  ///< by name of the group
  ProofFindings found_;
};

}  // namespace twofour
