#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "lib/convert.h"
#include "lib/derive.h"
#include "lib/encoder.h"
#include "lib/expert_packer.h"
#include "lib/file.h"
#include "lib/job_queue.h"
#include "lib/manifest.h"
#include "lib/output_directory.h"
#include "lib/problems.h"
#include "lib/turnstile.h"

namespace twofour {

/// A piece of a conversion's work.
struct Job {
  enum class Kind { kPack, kHash, kEncode, kCopy, kVerify } kind;
  size_t index;                 ///< kPack, kHash: target; kEncode: group; else first tensor of the plan
  size_t count = 1;             ///< kCopy, kVerify: neighbouring tensors
  int64_t e = 0;                ///< kPack, kHash
  Piece piece{};                ///< kPack
  uint64_t begin = 0, end = 0;  ///< kCopy: bytes of the tensor, where it is a piece of one
  uint64_t turn = 0;            ///< place among the pieces of the target or tensor
};

/// One output file while it is written.
struct OpenFile {
  std::mutex mutex;
  std::optional<AtomicFile> file;
  std::atomic<size_t> writes_left{0}, checks_left{0};
};

/// One conversion from first job to last file.
class Conversion {
 public:
  Conversion(const Checkpoint& source, const Plan& plan, const ConvertOptions& options,
             OutputDirectory& directory, Progress& progress)
      : source_(source),
        plan_(plan),
        options_(options),
        directory_(directory),
        progress_(progress),
        files_(plan.files.size()),
        turns_(plan.targets.size() + plan.tensors.size() + plan.modules.size()),
        hashers_(plan.tensors.size()),
        source_hashers_(plan.modules.size()),
        rewritten_(plan.modules.size()),
        results_(plan.targets.size()) {
    record_.outputs.resize(plan.tensors.size());
    record_.matrices.resize(plan.matrices.size());
    record_.modules.resize(plan.modules.size());
    for (size_t m = 0; m < plan.modules.size(); ++m) rewritten_[m].resize(plan.modules[m].multipliers.size());
    for (size_t t = 0; t < plan.targets.size(); ++t) results_[t].resize(plan.targets[t].sources.size());
  }

  void run() {
    std::vector<Job> jobs = list_jobs();
    for (const Job& job : jobs) {
      for (const uint32_t f : files_of(job)) ++files_[f].writes_left;
    }
    progress_.phase = "converting";
    queue_.emplace(std::move(jobs));
    queue_->run(
        plan_.workers(options_.jobs, options_.device), [this] { return make_worker(); },
        [this] {
          for (Turnstile& t : turns_) t.stop();
        });
    problems_.refuse();
  }

  ConversionRecord finish_record();
  const std::vector<std::vector<SourceResult>>& results() const { return results_; }
  uint64_t bytes_read() const { return bytes_read_; }
  uint64_t bytes_verified() const { return bytes_verified_; }

 private:
  // --- What there is to do ---
  std::vector<Job> list_jobs() const;
  void list_encodings(std::vector<Job>& jobs) const;
  void list_copies(std::vector<Job>& jobs) const;
  std::vector<uint32_t> files_of(const Job& job) const;

  // --- Doing it ---
  std::function<void(const Job&)> make_worker();
  void pack(const Job& job, ExpertPacker& packer);
  void merge_results(const Job& job, std::span<SourceResult> found);
  void encode(const Job& job, Encoder& encoder);
  void copy(const Job& job, Deriver& deriver, std::vector<uint8_t>& buffer);
  void merge_derived(size_t i, const Deriver& deriver);
  void hash_source(const Job& job, size_t i, const Deriver& deriver);
  void verify(const Job& job, std::vector<uint8_t>& buffer);
  void write_done(uint32_t file);

  AtomicFile& open(uint32_t f);
  uint64_t offset_of(const OutputTensor& t) const { return plan_.files[t.file].header.size() + t.info.begin; }
  /// Bytes of a tensor that come from no other file.
  std::vector<uint8_t> own_bytes(const OutputTensor& t) const;
  Turnstile& turns_of_tensor(size_t i) { return turns_[plan_.targets.size() + i]; }
  Turnstile& turns_of_source(size_t m) { return turns_[plan_.targets.size() + plan_.tensors.size() + m]; }

  const Checkpoint& source_;
  const Plan& plan_;
  const ConvertOptions& options_;
  OutputDirectory& directory_;
  Progress& progress_;
  std::optional<JobQueue<Job>> queue_;
  std::deque<OpenFile> files_;
  std::deque<Turnstile> turns_;  ///< targets, then tensors, then rewritten modules
  std::vector<std::optional<Hasher>> hashers_;
  struct SourceHashers {
    Hasher codes, scales;
  };
  std::vector<std::optional<SourceHashers>> source_hashers_;  ///< of rewritten modules read in ranges
  std::vector<std::vector<PruneStats>> rewritten_;            ///< one an expert of each rewritten module
  ConversionRecord record_;
  std::mutex results_mutex_;
  std::vector<std::vector<SourceResult>> results_;
  Problems problems_;
  std::atomic<bool> refused_{false};  ///< a block scale is bad: look for more, write nothing further
  std::atomic<uint64_t> bytes_read_{0}, bytes_verified_{0};
};

}  // namespace twofour
