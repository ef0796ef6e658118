#include "lib/jobs/convert/conversion.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/error.h"
#include "kernels/device/check.h"
#include "lib/base/threads/interrupt.h"

namespace twofour {
namespace {

/// Pieces of at least this many bytes are written immediately.
constexpr uint64_t kLargeWrite = 64u << 10;
/// Small tensors are read back together, up to this many bytes.
constexpr uint64_t kVerifyBatch = 32u << 20;

/// Reads the header of a flushed file back and checks it.
void check_header(const AtomicFile& file, std::string_view header) {
  const auto read = [&](uint64_t at, std::span<uint8_t> piece) { file.read(at, piece); };
  read_in_pieces(header.size(), 1u << 20, read, [&](uint64_t at, std::span<const uint8_t> piece) {
    if (std::equal(piece.begin(), piece.end(), header.substr(at, piece.size()).begin(),
                   [](uint8_t a, char b) { return a == static_cast<uint8_t>(b); }))
      return;
    throw Error(fmt::format("{}: expected the header that was planned, found another when read back",
                            file.path().string()));
  });
}

}  // namespace

/// The state of a thread. All jobs of the thread share it.
struct Conversion::Thread {
  Worker worker;
  std::vector<uint8_t> pending;  ///< small consecutive pieces of a file that are not written yet
  uint32_t pending_file = 0;
  uint64_t pending_begin = 0;
  std::vector<uint8_t> buffer;  ///< for verify()
};

/// Collects the output of the units of one thread. Passes it to the hashes and to the files. Small pieces are
/// written together.
class Conversion::UnitSink : public Sink {
 public:
  UnitSink(Conversion& conversion, Thread& thread) : conversion_(conversion), thread_(thread) {}

  void begin(uint32_t transformation) { transformation_ = transformation; }
  void write(int part, uint64_t offset, std::span<const uint8_t> derived) override {
    Conversion& c = conversion_;
    const size_t i = c.plan_.parts_of(transformation_)[static_cast<size_t>(part)];
    const OutputTensor& t = c.plan_.tensors[i];
    if (!c.wanted_[t.file]) return;
    const std::span<const uint8_t> bytes = c.learned(i, offset, derived);
    const uint64_t at = c.offset_of(t) + offset;
    if (bytes.size() < kLargeWrite) {
      append(t.file, at, bytes);
      c.hash(i, offset, bytes);
      return;
    }
    // With the page cache, a file accepts one write at a time. A thread that would have to wait hashes first.
    AtomicFile& file = c.open(t.file);
    std::unique_lock turn(c.files_[t.file].writing, std::defer_lock);
    const bool waits = file.io() != Io::kDirect && !turn.try_lock();
    if (waits) {
      c.hash(i, offset, bytes);
      turn.lock();
    }
    file.write(at, bytes);
    if (turn) turn.unlock();
    if (!waits) c.hash(i, offset, bytes);
  }
  /// Writes the pending bytes.
  void flush() {
    if (thread_.pending.empty()) return;
    conversion_.open(thread_.pending_file).write(thread_.pending_begin, thread_.pending);
    thread_.pending.clear();
  }

  void add_read(uint64_t bytes) override {
    conversion_.bytes_read_ += bytes;
    conversion_.progress_.done += bytes;
  }
  bool only_checks() const override { return conversion_.refused_; }
  void refuse_scale(size_t tensor, int64_t expert, const BadScale& bad, const std::string& where) override {
    {
      const std::lock_guard lock(conversion_.refused_mutex_);
      // The pieces of a tensor are read in any order.
      const auto [at, is_new] = conversion_.bad_scales_.try_emplace({tensor, expert});
      if (is_new || bad.at < at->second.first.at) at->second = {bad, where};
    }
    conversion_.refuse();
  }
  void refuse(const std::string& problem) override {
    {
      const std::lock_guard lock(conversion_.refused_mutex_);
      // Matrices that share statistics have the same errors.
      if (conversion_.seen_problems_.insert(problem).second) conversion_.problems_.add(problem);
    }
    conversion_.refuse();
  }

 private:
  /// Adds a small piece to the pending bytes.
  void append(uint32_t file, uint64_t at, std::span<const uint8_t> bytes) {
    const bool follows = !thread_.pending.empty() && thread_.pending_file == file &&
                         thread_.pending_begin + thread_.pending.size() == at;
    if (!follows) flush();
    if (thread_.pending.empty()) thread_.pending_file = file, thread_.pending_begin = at;
    thread_.pending.insert(thread_.pending.end(), bytes.begin(), bytes.end());
  }

  Conversion& conversion_;
  Thread& thread_;
  uint32_t transformation_ = 0;
};

Conversion::Conversion(const Checkpoint& source, const Plan& plan, const ConvertOptions& options,
                       std::filesystem::path directory, Progress& progress, std::vector<bool> wanted,
                       Finished finished)
    : source_(source),
      plan_(plan),
      options_(options),
      directory_(std::move(directory)),
      progress_(progress),
      wanted_(std::move(wanted)),
      finished_(std::move(finished)),
      work_(source, plan, wanted_),
      files_(plan.files.size()),
      running_(plan.transformations.size()),
      hashes_(plan.tensors.size()),
      outputs_(plan.tensors.size()) {
  for (const WorkList::Item& u : work_.items()) {
    total_bytes_ += u.unit.read;
    for (const uint32_t f : work_.files_of(u)) ++files_[f].writes_left;
    Running& running = running_[u.transformation];
    ++running.units_left;
    if (u.unit.part <= 0) ++running.results_left;
  }
  for (size_t t = 0; t < running_.size(); ++t) {
    if (running_[t].results_left > 0) ++files_[plan.tensors[plan.parts_of(t)[0]].file].results_left;
  }
  for (size_t i = 0; options_.written != nullptr && i < plan.tensors.size(); ++i)
    tensors_.emplace(plan.tensors[i].info.name, i);
  for (size_t f = 0; f < wanted_.size(); ++f) {
    if (wanted_[f] && options_.verify) total_bytes_ += plan_.files[f].data_bytes;
  }
  const auto& recovery = plan.recipe.recovery;
  if (!recovery || recovery->tuned.empty()) return;
  check(recovery->values != nullptr, "the values that recovery learned");
  for (size_t i = 0; i < plan.tensors.size(); ++i) {
    const auto at = recovery->values->find(plan.tensors[i].info.name);
    if (at == recovery->values->end()) continue;
    check(at->second.size() == plan.tensors[i].info.bytes(), "the whole tensor that recovery learned");
    learned_[i] = at->second;
  }
  check(learned_.size() == recovery->tuned.size(), "all tensors that recovery learned");
}

std::span<const uint8_t> Conversion::learned(size_t tensor, uint64_t offset,
                                             std::span<const uint8_t> bytes) const {
  const auto at = learned_.find(tensor);
  return at == learned_.end() ? bytes : at->second.subspan(offset, bytes.size());
}

void Conversion::run() {
  progress_.phase = "converting";
  std::vector<Job> jobs;
  for (const WorkList::Batch& batch : work_.batches()) {
    jobs.push_back({Job::Kind::kMake, batch.first, batch.count});
  }
  queue_.emplace(std::move(jobs));
  const Compute compute{options_.isa, options_.device, plan_.solver_threads(options_.jobs)};
  const auto make_worker = [this, compute] {
    auto thread = std::make_shared<Thread>(Thread{Worker(source_, compute, options_.kept), {}, 0, 0, {}});
    return [this, thread](const Job& job) {
      check_interrupt();
      if (job.kind == Job::Kind::kMake) {
        make(job, *thread);
      } else {
        verify(job, thread->buffer);
      }
    };
  };
  queue_->run(plan_.workers(options_.jobs), make_worker, [this] { stop(); });
  for (const auto& [source, bad] : bad_scales_) {
    problems_.add(
        fmt::format("{}: expected block scales that are not negative and not NaN, found byte 0x{:02X} at{}",
                    source_.where(source.first), bad.first.byte, bad.second));
  }
  problems_.refuse();
  check_inputs();
}

void Conversion::check_inputs() const {
  source_.check_unchanged();
  if (options_.kept != nullptr) options_.kept->checkpoint().check_unchanged();
  for (const Rule& rule : plan_.recipe.rules) {
    if (rule.statistics) rule.statistics->file().check_unchanged();
    if (rule.masks) rule.masks->check_unchanged();
  }
  if (options_.inputs != nullptr) options_.inputs->check_unchanged();
}

void Conversion::make(const Job& job, Thread& thread) {
  UnitSink sink(*this, thread);
  for (size_t i = job.first; i < job.first + job.count; ++i) {
    const WorkList::Item& u = work_.items()[i];
    sink.begin(u.transformation);
    work_of(u.transformation)->run(u.unit, thread.worker, sink);
  }
  sink.flush();
  for (size_t i = job.first; i < job.first + job.count; ++i) unit_done(work_.items()[i], sink);
}

std::shared_ptr<Work> Conversion::work_of(uint32_t transformation) {
  Running& running = running_[transformation];
  const std::lock_guard lock(running.mutex);
  if (!running.work) {
    running.work = plan_.transformations[transformation]->begin();
    if (stopped_) running.work->stop();
    if (refused_) running.work->release();
  }
  return running.work;
}

void Conversion::unit_done(const WorkList::Item& u, UnitSink& sink) {
  const uint32_t t = u.transformation;
  Running& running = running_[t];
  if (u.unit.part <= 0 && --running.results_left == 0 && !refused_) {
    Json result = work_of(t)->result(sink);
    if (!result.is_null()) {
      const std::lock_guard lock(results_mutex_);
      results_.emplace(t, std::move(result));
    }
    result_done(plan_.tensors[plan_.parts_of(t)[0]].file);
  }
  if (--running.units_left == 0) {
    const std::lock_guard lock(running.mutex);
    running.work.reset();
  }
  if (refused_) return;
  for (const uint32_t f : work_.files_of(u)) write_done(f);
}

void Conversion::hash(size_t tensor, uint64_t offset, std::span<const uint8_t> bytes) {
  if (bytes.size() == plan_.tensors[tensor].info.bytes()) {
    outputs_[tensor] = hash_bytes(bytes);
    return;
  }
  std::shared_ptr<OrderedHash> ordered;
  {
    const std::lock_guard lock(hashes_mutex_);
    std::shared_ptr<OrderedHash>& mine = hashes_[tensor];
    if (!mine) {
      mine = std::make_shared<OrderedHash>();
      if (stopped_) mine->order.stop();
      if (refused_) mine->order.release();
    }
    ordered = mine;
  }
  ordered->order.pass(offset, bytes.size(), [&] { ordered->hasher.update(bytes); });
}

/// From now on units only look for further errors, and no unit waits for another to write.
void Conversion::refuse() {
  if (refused_.exchange(true)) return;
  {
    const std::lock_guard lock(hashes_mutex_);
    for (const auto& h : hashes_) {
      if (h) h->order.release();
    }
  }
  for (Running& running : running_) {
    const std::lock_guard lock(running.mutex);
    if (running.work) running.work->release();
  }
}

void Conversion::stop() {
  stopped_ = true;
  {
    const std::lock_guard lock(hashes_mutex_);
    for (const auto& h : hashes_) {
      if (h) h->order.stop();
    }
  }
  for (Running& running : running_) {
    const std::lock_guard lock(running.mutex);
    if (running.work) running.work->stop();
  }
}

AtomicFile& Conversion::open(uint32_t f) {
  OpenFile& open = files_[f];
  const std::lock_guard lock(open.mutex);
  if (!open.file) {
    open.file.emplace(directory_ / plan_.files[f].name, options_.io);
    if (options_.io == Io::kDirect && open.file->io() != Io::kDirect) wrote_cached_ = true;
    open.file->resize(plan_.files[f].size());
    open.file->write(0, plan_.files[f].header);
  }
  return *open.file;
}

Findings Conversion::io_findings() const {
  Findings findings;
  const auto note = [&](const std::filesystem::path& where, const char* what) {
    findings.push_back(
        {Severity::kWarning, "no-direct-io", where.string(),
         fmt::format("its file system has no direct I/O: {} through the page cache or memory", what)});
  };
  if (options_.io != Io::kDirect) return findings;
  const auto& shards = source_.shards();
  if (std::any_of(shards.begin(), shards.end(), [](auto& s) { return s.file.io() != Io::kDirect; })) {
    note(source_.path(), "read");
  }
  if (wrote_cached_) note(directory_, "written");
  return findings;
}

void Conversion::write_done(uint32_t f) {
  if (--files_[f].writes_left > 0) return;
  const OutputFile& file = plan_.files[f];
  const size_t end = file.first_tensor + file.tensor_count;
  for (size_t i = file.first_tensor; i < end; ++i) {
    const std::lock_guard lock(hashes_mutex_);
    if (!hashes_[i]) continue;  // the tensor was hashed in one piece
    outputs_[i] = hashes_[i]->hasher.digest();
    hashes_[i].reset();
  }
  if (!options_.verify) {
    commit(f);
    return;
  }
  open(f).flush();  // so that data is read from the disk rather than the page cache
  std::vector<Job> checks;
  for (size_t i = file.first_tensor; i < end;) {
    Job job{Job::Kind::kVerify, i, 0};
    uint64_t bytes = 0;
    do {
      bytes += plan_.tensors[i++].info.bytes();
      ++job.count;
    } while (i < end && bytes + plan_.tensors[i].info.bytes() <= kVerifyBatch);
    checks.push_back(job);
  }
  files_[f].checks_left = checks.size();
  for (const Job& job : checks) queue_->add(job);
}

void Conversion::commit(uint32_t f) {
  if (options_.verify) check_header(open(f), plan_.files[f].header);
  open(f).commit();
  result_done(f);
}

void Conversion::result_done(uint32_t f) {
  if (--files_[f].results_left > 0 || refused_) return;
  const OutputFile& file = plan_.files[f];
  const auto first = static_cast<std::ptrdiff_t>(file.first_tensor);
  ShardRecord record;
  record.file = f;
  record.outputs.assign(outputs_.begin() + first,
                        outputs_.begin() + first + static_cast<std::ptrdiff_t>(file.tensor_count));
  {
    const std::lock_guard lock(results_mutex_);
    for (size_t i = file.first_tensor; i < file.first_tensor + file.tensor_count; ++i) {
      const OutputTensor& t = plan_.tensors[i];
      if (t.part != 0) continue;
      if (auto result = results_.extract(t.transformation)) record.results.insert(std::move(result));
    }
  }
  const std::lock_guard lock(finished_mutex_);
  finished_(std::move(record));
}

}  // namespace twofour
