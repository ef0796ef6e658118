#pragma once
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "lib/lint/rules/rules.h"
#include "lib/lint/weights/weight_counter.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The counts of weights that were read back while a checkpoint was written. lint() of that checkpoint does
/// not read them again.
class WrittenWeights {
 public:
  /// `view` has the names, types and shapes of the tensors that are written. It must outlive this object.
  explicit WrittenWeights(const Checkpoint& view);
  WrittenWeights(const WrittenWeights&) = delete;
  WrittenWeights& operator=(const WrittenWeights&) = delete;

  using Read = std::function<void(std::string_view tensor, uint64_t offset, std::span<uint8_t> out)>;
  /// The hashes of tensors that were read, by name.
  struct Hashes {
    std::map<std::string, Hash128> hashes;
    bool is_left = false;  ///< the tensor has to be read alone, and lint() counts it
  };
  /// Counts a written tensor, whose bytes `read` reads. Codes and their block scales are counted by one call,
  /// with the name of the codes, if `is_here` is true for both. Several threads may call it at once.
  Hashes count(const std::string& tensor, const std::function<bool(std::string_view)>& is_here,
               const Read& read, Progress& progress);

  const WeightCounter& counts() const { return counter_; }

 private:
  LintReporter unused_;  ///< lint() of what was written reports
  const LintInput input_;
  WeightCounter counter_;
  std::map<std::string, WeightCounter::Job, std::less<>> jobs_;  ///< by tensor; of a module, by its codes
  std::map<std::string, std::string, std::less<>> codes_of_;     ///< names of codes by those of block scales
};

/// Checks every byte of every tensor, and the hashes in an artifact's manifest. Returns the figures of all
/// complete matrices, ordered by tensor and expert. `beside` is called once, on one thread, while other
/// threads read. Weights that `written` counted are not read; it may be null.
std::vector<MatrixFigures> lint_weights(const LintInput& input, int jobs, const std::function<void()>& beside,
                                        const WrittenWeights* written, LintReporter& reporter,
                                        Progress& progress);

}  // namespace twofour
