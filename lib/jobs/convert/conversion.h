#pragma once
#include <atomic>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "lib/base/findings/problems.h"
#include "lib/base/io/file.h"
#include "lib/base/threads/job_queue.h"
#include "lib/base/threads/ordered_section.h"
#include "lib/jobs/convert/convert.h"
#include "lib/jobs/convert/work_list.h"
#include "lib/write/output/shard_record.h"

namespace twofour {

/// Writes the weight files of a conversion, from the first unit of work to the last record.
class Conversion {
 public:
  /// Receives the record of a file after the file got its final name. Calls are never concurrent.
  using Finished = std::function<void(ShardRecord&&)>;

  /// Writes files of the plan into `directory`. `wanted` has one entry for each file of the plan and is true
  /// for files to write.
  Conversion(const Checkpoint& source, const Plan& plan, const ConvertOptions& options,
             std::filesystem::path directory, Progress& progress, std::vector<bool> wanted,
             Finished finished);

  /// Throws Error like check_inputs(), and on I/O errors, bad block scales and different hashes; Interrupted
  /// on Ctrl-C. Files that were finished before stay.
  void run();
  /// Throws Error if a file of the source or of a rule was written to since it was opened, or if a file of
  /// ConvertOptions::inputs has changed.
  void check_inputs() const;

  /// Approximate number of bytes that run() will read, from the source and from written files.
  uint64_t total_bytes() const { return total_bytes_; }
  /// True if the source was refused, since it has invalid block scales or weights that cannot be written.
  bool refused() const { return refused_; }
  /// Notes on files that used the page cache although direct I/O was requested.
  Findings io_findings() const;
  uint64_t bytes_read() const { return bytes_read_; }
  uint64_t bytes_verified() const { return bytes_verified_; }

 private:
  /// Neighbouring units that one thread computes, or neighbouring tensors that it reads back.
  struct Job {
    enum class Kind { kMake, kVerify } kind;
    size_t first, count;
  };
  /// One output file that is being written.
  struct OpenFile {
    std::mutex mutex;
    std::mutex writing;  ///< held while a large piece is written through the page cache
    std::optional<AtomicFile> file;
    std::atomic<size_t> writes_left{0}, checks_left{0};
    /// Number of steps that the record of the file waits for: the rename of the file, and the results of
    /// transformations whose part 0 is in it.
    std::atomic<size_t> results_left{1};
  };
  /// One transformation whose units are running.
  struct Running {
    std::mutex mutex;
    std::shared_ptr<Work> work;
    std::atomic<size_t> units_left{0}, results_left{0};  ///< results_left counts units that write part 0 or
                                                         ///< no part
  };
  struct OrderedHash {
    OrderedSection order;
    Hasher hasher;
  };
  class UnitSink;
  struct Thread;

  void make(const Job& job, Thread& thread);
  std::shared_ptr<Work> work_of(uint32_t transformation);
  void unit_done(const WorkList::Item& item, UnitSink& sink);
  void hash(size_t tensor, uint64_t offset, std::span<const uint8_t> bytes);
  void refuse();
  void stop();
  void verify(const Job& job, std::vector<uint8_t>& buffer);
  bool count_written(size_t tensor);
  void check_hash(size_t tensor, const Hash128& found);
  void write_done(uint32_t file);
  void commit(uint32_t file);
  void result_done(uint32_t file);

  /// The bytes that a tensor gets instead of `bytes`, which begin at `offset`, if recovery learned them.
  std::span<const uint8_t> learned(size_t tensor, uint64_t offset, std::span<const uint8_t> bytes) const;
  AtomicFile& open(uint32_t f);
  uint64_t offset_of(const OutputTensor& t) const { return plan_.files[t.file].header.size() + t.info.begin; }

  const Checkpoint& source_;
  const Plan& plan_;
  const ConvertOptions options_;
  const std::filesystem::path directory_;
  Progress& progress_;
  const std::vector<bool> wanted_;
  std::map<std::string_view, size_t> tensors_;  ///< tensors of the plan by name, if weights are counted
  const Finished finished_;
  uint64_t total_bytes_ = 0;
  std::mutex finished_mutex_;
  const WorkList work_;
  std::optional<JobQueue<Job>> queue_;
  std::deque<OpenFile> files_;
  std::deque<Running> running_;  ///< one for each transformation
  std::mutex hashes_mutex_;
  std::vector<std::shared_ptr<OrderedHash>> hashes_;  ///< for tensors that are written in several pieces
  std::vector<Hash128> outputs_;                      ///< one for each tensor of the plan
  std::mutex results_mutex_;
  std::map<uint32_t, Json> results_;                    ///< by index of the transformation
  std::map<size_t, std::span<const uint8_t>> learned_;  ///< by tensor of the plan
  std::mutex refused_mutex_;
  /// The first block scale that was refused in each tensor and expert, and a description of its place for
  /// people.
  std::map<std::pair<size_t, int64_t>, std::pair<BadScale, std::string>> bad_scales_;
  Problems problems_;
  std::set<std::string> seen_problems_;
  std::atomic<bool> refused_{false}, stopped_{false};
  std::atomic<bool> wrote_cached_{false};  ///< true if a file was, although direct I/O was requested
  std::atomic<uint64_t> bytes_read_{0}, bytes_verified_{0};
};

}  // namespace twofour
