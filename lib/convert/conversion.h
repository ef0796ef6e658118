#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "lib/convert/convert.h"
#include "lib/derive.h"
#include "lib/transform/encoder.h"
#include "lib/transform/expert_packer.h"
#include "lib/io/file.h"
#include "lib/threads/job_queue.h"
#include "lib/findings/problems.h"
#include "lib/output/shard_record.h"
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
  /// What its record waits for: the file under its name, and hashes of sources that are read for them alone.
  std::atomic<size_t> results_left{1};
};

/// The weight files of a conversion, from the first job to the last record.
class Conversion {
 public:
  /// Takes what is known of a file once the file has its name; never called twice at a time.
  using Finished = std::function<void(ShardRecord&&)>;

  /// Writes into `directory` the files of the plan that `wanted`, one entry a file, says.
  Conversion(const Checkpoint& source, const Plan& plan, const ConvertOptions& options,
             std::filesystem::path directory, Progress& progress, std::vector<bool> wanted, Finished finished)
      : source_(source),
        plan_(plan),
        options_(options),
        directory_(std::move(directory)),
        progress_(progress),
        wanted_(std::move(wanted)),
        finished_(std::move(finished)),
        files_(plan.files.size()),
        turns_(plan.targets.size() + plan.tensors.size() + plan.modules.size()),
        hashers_(plan.tensors.size()),
        source_hashers_(plan.modules.size()),
        rewritten_(plan.modules.size()),
        results_(plan.targets.size()),
        is_block_scale_(source.tensors().size()) {
    for (const Nvfp4Module& m : source.nvfp4_modules()) is_block_scale_[m.block_scale] = true;
    outputs_.resize(plan.tensors.size());
    matrices_.resize(plan.matrices.size());
    modules_.resize(plan.modules.size());
    for (size_t m = 0; m < plan.modules.size(); ++m) rewritten_[m].resize(plan.modules[m].multipliers.size());
    for (size_t t = 0; t < plan.targets.size(); ++t) results_[t].resize(plan.targets[t].sources.size());
  }

  /// Throws Error on I/O errors, bad block scales and hashes that differ, Interrupted on Ctrl-C; files that
  /// were finished before stay.
  void run();

  /// That run() will read of source and files, about.
  uint64_t total_bytes() const;
  /// Whether the source has block scales that are none.
  bool refused() const { return refused_; }
  /// Notes on files that did not go past the page cache, though they should have.
  Findings io_findings() const;
  uint64_t bytes_read() const { return bytes_read_; }
  uint64_t bytes_verified() const { return bytes_verified_; }

 private:
  /// Block scales that are told of once: those of an expert, or of a tensor that passes through (then 0).
  using ScaleSource = std::pair<size_t, int64_t>;

  // --- What there is to do ---
  std::vector<Job> list_jobs() const;
  void list_encodings(std::vector<Job>& jobs) const;
  void list_copies(std::vector<Job>& jobs) const;
  /// Wanted files that a job has bytes or, with kHash, results for.
  std::vector<uint32_t> files_of(const Job& job) const;

  // --- Doing it ---
  std::function<void(const Job&)> make_worker();
  void pack(const Job& job, ExpertPacker& packer);
  void merge_results(const Job& job, std::span<SourceResult> found);
  void encode(const Job& job, Encoder& encoder);
  void copy(const Job& job, Deriver& deriver, std::vector<uint8_t>& buffer);
  void merge_derived(size_t i, const Deriver& deriver);
  /// Notes a block scale that is none; `where` says the place for people.
  void refuse_scale(ScaleSource source, const BadScale& bad, const std::string& where);
  void hash_source(const Job& job, size_t i, const Deriver& deriver);
  void verify(const Job& job, std::vector<uint8_t>& buffer);
  void write_done(uint32_t file);
  void commit(uint32_t file);
  void result_done(uint32_t file);
  ShardRecord record_of(uint32_t file) const;
  Quality quality_of_target(size_t t) const;

  bool is_wanted(size_t tensor) const { return wanted_[plan_.tensors[tensor].file]; }
  AtomicFile& open(uint32_t f);
  uint64_t offset_of(const OutputTensor& t) const { return plan_.files[t.file].header.size() + t.info.begin; }
  /// Bytes of a tensor that come from no other file.
  std::vector<uint8_t> own_bytes(const OutputTensor& t) const;
  Turnstile& turns_of_tensor(size_t i) { return turns_[plan_.targets.size() + i]; }
  Turnstile& turns_of_source(size_t m) { return turns_[plan_.targets.size() + plan_.tensors.size() + m]; }

  const Checkpoint& source_;
  const Plan& plan_;
  const ConvertOptions options_;
  const std::filesystem::path directory_;
  Progress& progress_;
  const std::vector<bool> wanted_;
  const Finished finished_;
  std::mutex finished_mutex_;
  std::optional<JobQueue<Job>> queue_;
  std::deque<OpenFile> files_;
  std::deque<Turnstile> turns_;  ///< targets, then tensors, then rewritten modules
  std::vector<std::optional<Hasher>> hashers_;
  struct SourceHashers {
    Hasher codes, scales;
  };
  std::vector<std::optional<SourceHashers>> source_hashers_;  ///< of rewritten modules read in ranges
  std::vector<std::vector<PruneStats>> rewritten_;            ///< one an expert of each rewritten module
  std::vector<Hash128> outputs_;                              ///< one a tensor of the plan
  std::vector<SliceHashes> modules_;                          ///< one a rewritten module: its source
  std::vector<EncodedResult> matrices_;                       ///< one an encoded matrix
  std::mutex results_mutex_;
  std::vector<std::vector<SourceResult>> results_;
  std::mutex bad_scales_mutex_;
  /// The first that was found in each, and its place for people.
  std::map<ScaleSource, std::pair<BadScale, std::string>> bad_scales_;
  std::vector<bool> is_block_scale_;  ///< one a tensor of the source: what passes through is held to it too
  Problems problems_;
  std::atomic<bool> refused_{false};       ///< a block scale is bad: look for more, write nothing further
  std::atomic<bool> wrote_cached_{false};  ///< though it should have been direct
  std::atomic<uint64_t> bytes_read_{0}, bytes_verified_{0};
};

}  // namespace twofour
