#pragma once
#include <cstdint>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "lib/base/io/hash.h"
#include "lib/base/threads/progress.h"
#include "lib/lint/bytes/figures.h"
#include "lib/lint/bytes/tensor_scan.h"

namespace twofour {

/// Counts the bytes of tensors: faults, figures of matrices and, if requested, hashes. Several threads may
/// count at once.
class WeightCounter {
 public:
  /// Lines [begin, end) of a module or of another tensor. Its matrices follow each other.
  struct Job {
    size_t module, tensor;  ///< positions in the input; one of them is kNone
    uint64_t begin, end;
    static constexpr size_t kNone = SIZE_MAX;
  };
  /// The memory of one thread.
  struct Buffers {
    std::vector<uint8_t> codes, scales;
  };
  /// Reads bytes of a tensor from `offset` on.
  using Read = std::function<void(size_t tensor, uint64_t offset, std::span<uint8_t> out)>;
  /// `input` must outlive this object. With `hashes`, a tensor is one job, because its hash needs the bytes
  /// in order. `pattern` is the pattern that the codes of `pruned` modules have, empty if there is none.
  WeightCounter(const LintInput& input, bool hashes, std::string pattern = {},
                std::function<bool(const Nvfp4Linear&)> pruned = {});

  /// The jobs of all complete tensors, in the order of the files. Single scales have none without hashes.
  const std::vector<Job>& jobs() const { return jobs_; }
  uint64_t bytes_of(const Job& job) const;
  void count(const Job& job, const Read& read, Buffers& buffers, Progress& progress);
  /// The hash of a tensor's bytes, once they are counted with hashes.
  std::optional<Hash128> hash_of(size_t tensor) const;
  /// Takes over what `other` counted of the same tensors, by name. These have no job any more. `other` counts
  /// with hashes and without a pattern.
  void take(const WeightCounter& other);

  /// True if codes of a module are compared with the pattern.
  bool is_pruned(const Nvfp4Linear& m) const { return !pattern_.empty() && !m.k_outer && pruned_(m); }
  const TensorScan& scan_of(size_t tensor) const { return scans_.at(tensor); }
  const std::map<size_t, TensorCounts>& tensors() const { return tensors_; }
  /// The counts of the module with these codes, which must be complete.
  const BlockCounts& module(size_t codes) const { return modules_.at(codes); }
  const std::map<size_t, Hash128>& hashes() const { return hashes_; }
  /// Figures of complete matrices, sorted by tensor and expert.
  std::vector<MatrixFigures> figures() const;

 private:
  size_t tensor_of(const Job& job) const {
    return job.module != Job::kNone ? s_.modules[job.module].codes : job.tensor;
  }
  void plan();
  void add_jobs(size_t module, size_t tensor, const MatrixPlan& plan);
  template <class Work>
  void for_each_piece(const Job& job, const MatrixPlan& plan, const Work& work);
  void keep_figures(const Job& job, uint64_t matrix, FigureCounter counter);
  void count_module(const Job& job, const Read& read, Buffers& buffers, Progress& progress);
  void count_tensor(const Job& job, const Read& read, std::vector<uint8_t>& buffer, Progress& progress);
  bool take(const Job& job, const WeightCounter& other);

  const LintInput& s_;
  const bool hashes_wanted_;
  const std::string pattern_;
  const std::function<bool(const Nvfp4Linear&)> pruned_;
  std::vector<Job> jobs_;
  std::map<size_t, TensorScan> scans_;
  std::map<size_t, MatrixPlan> plans_;  ///< by the tensor of codes or values
  mutable std::mutex mutex_;
  /// Figures of matrices that several jobs share.
  std::map<std::pair<size_t, uint64_t>, FigureCounter> parts_;
  std::map<size_t, std::vector<MatrixFigures>> figures_;  ///< by tensor
  std::map<size_t, Hash128> hashes_;
  std::map<size_t, BlockCounts> modules_;  ///< by the tensor of codes
  std::map<size_t, TensorCounts> tensors_;
};

}  // namespace twofour
