#include "lib/convert.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <numeric>

#include "formats/e4m3.h"
#include "formats/error.h"
#include "formats/layouts.h"
#include "lib/artifact_config.h"
#include "lib/derive.h"
#include "lib/expert_packer.h"
#include "lib/interrupt.h"
#include "lib/job_queue.h"
#include "lib/manifest.h"
#include "lib/output_directory.h"
#include "lib/problems.h"
#include "lib/turnstile.h"

namespace twofour {
namespace {

/// Tensors are copied in pieces of this size, small ones together up to it.
constexpr uint64_t kCopyBytes = 4u << 20;
/// Written tensors are read back in pieces that stay in the L2 cache, small ones together up to kVerifyBatch.
constexpr uint64_t kVerifyBytes = 512u << 10;
constexpr uint64_t kVerifyBatch = 32u << 20;

struct Job {
  enum class Kind { kPack, kHash, kCopy, kVerify } kind;
  size_t index;                 ///< kPack, kHash: target; else first tensor of the plan
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
        plan_.workers(options_.jobs), [this] { return make_worker(); },
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
  void list_copies(std::vector<Job>& jobs) const;
  std::vector<uint32_t> files_of(const Job& job) const;

  // --- Doing it ---
  std::function<void(const Job&)> make_worker();
  void pack(const Job& job, ExpertPacker& packer);
  void merge_results(const Job& job, std::span<SourceResult> found);
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

std::vector<Job> Conversion::list_jobs() const {
  std::vector<Job> jobs;
  for (size_t t = 0; t < plan_.targets.size(); ++t) {
    const Shape shape = plan_.targets[t].shape;
    uint64_t turn = 0;
    const auto pieces = pieces_of(plan_.targets[t], plan_.tilings[t]);
    for (int64_t e = 0; e < shape.e; ++e) {
      for (const Piece& piece : pieces) {
        jobs.push_back({.kind = Job::Kind::kPack, .index = t, .e = e, .piece = piece, .turn = turn++});
      }
      // A slice read in pieces cannot be hashed on the way.
      if (pieces.size() > 1) jobs.push_back({.kind = Job::Kind::kHash, .index = t, .e = e});
    }
  }
  list_copies(jobs);
  return jobs;
}

void Conversion::list_copies(std::vector<Job>& jobs) const {
  for (size_t i = 0; i < plan_.tensors.size(); ++i) {
    const OutputTensor& t = plan_.tensors[i];
    if (t.kind == OutputTensor::Kind::kPart) continue;
    const uint64_t bytes = t.info.bytes();
    if (bytes > kCopyBytes) {
      const uint64_t step =
          t.kind == OutputTensor::Kind::kDerived ? derive_step(source_, plan_, t) : kCopyBytes;
      for (uint64_t at = 0, turn = 0; at < bytes; at += step) {
        jobs.push_back({.kind = Job::Kind::kCopy,
                        .index = i,
                        .begin = at,
                        .end = std::min(bytes, at + step),
                        .turn = turn++});
      }
      continue;
    }
    Job batch{.kind = Job::Kind::kCopy, .index = i, .count = 1, .end = bytes};
    while (i + 1 < plan_.tensors.size() && plan_.tensors[i + 1].kind != OutputTensor::Kind::kPart &&
           plan_.tensors[i + 1].file == t.file &&
           batch.end + plan_.tensors[i + 1].info.bytes() <= kCopyBytes) {
      batch.end += plan_.tensors[++i].info.bytes();
      ++batch.count;
    }
    jobs.push_back(batch);
  }
}

std::vector<uint32_t> Conversion::files_of(const Job& job) const {
  if (job.kind == Job::Kind::kCopy) return {plan_.tensors[job.index].file};
  std::vector<uint32_t> files;
  if (job.kind == Job::Kind::kPack) {
    for (const size_t i : plan_.parts_of(job.index)) files.push_back(plan_.tensors[i].file);
  }
  return files;
}

std::function<void(const Job&)> Conversion::make_worker() {
  auto packer = std::make_shared<ExpertPacker>(source_, plan_, options_.isa);
  auto deriver = std::make_shared<Deriver>(source_, plan_);
  auto buffer = std::make_shared<std::vector<uint8_t>>();
  return [this, packer, deriver, buffer](const Job& job) {
    check_interrupt();
    switch (job.kind) {
      case Job::Kind::kPack:
      case Job::Kind::kHash: {
        const uint64_t before = packer->bytes_read();
        pack(job, *packer);
        bytes_read_ += packer->bytes_read() - before;
        progress_.done += packer->bytes_read() - before;
        break;
      }
      case Job::Kind::kCopy:
        copy(job, *deriver, *buffer);
        break;
      case Job::Kind::kVerify:
        verify(job, *buffer);
        break;
    }
  };
}

void Conversion::pack(const Job& job, ExpertPacker& packer) {
  const Target& target = plan_.targets[job.index];
  std::vector<SourceResult> found(target.sources_per_expert);
  if (job.kind == Job::Kind::kHash) {
    packer.hash(job.index, job.e, found);
    merge_results(job, found);
    return;
  }
  if (!refused_) {
    packer.pack(job.index, job.e, job.piece, found);
  } else if (job.piece.k0 == 0 && job.piece.r0 == 0) {
    packer.check(job.index, job.e, found);
  }
  merge_results(job, found);
  if (refused_) {
    turns_[job.index].pass(job.turn, [] {});  // somebody may wait behind this piece
    return;
  }

  const auto tensors = plan_.parts_of(job.index);
  for (const size_t i : tensors) {
    const OutputTensor& t = plan_.tensors[i];
    const auto expert_bytes = t.info.bytes() / static_cast<uint64_t>(target.shape.e);
    const auto before = static_cast<uint64_t>(piece_offset(plan_.recipe.layout, t.part, target, job.piece));
    open(t.file).write(offset_of(t) + static_cast<uint64_t>(job.e) * expert_bytes + before,
                       packer.part(t.part));
  }
  turns_[job.index].pass(job.turn, [&] {
    for (const size_t i : tensors) {
      if (!hashers_[i]) hashers_[i].emplace();
      hashers_[i]->update(packer.part(plan_.tensors[i].part));
    }
  });
  for (const size_t i : tensors) write_done(plan_.tensors[i].file);
}

void Conversion::merge_results(const Job& job, std::span<SourceResult> found) {
  const Target& target = plan_.targets[job.index];
  const std::lock_guard lock(results_mutex_);
  for (size_t i = 0; i < found.size(); ++i) {
    const size_t at = static_cast<size_t>(job.e) * target.sources_per_expert + i;
    SourceResult& total = results_[job.index][at];
    total.stats += found[i].stats;
    if (found[i].codes_hash != Hash128{}) {
      total.codes_hash = found[i].codes_hash;
      total.scales_hash = found[i].scales_hash;
    }
    if (found[i].fold && !total.fold) {
      total.fold = std::move(found[i].fold);
    } else if (found[i].fold) {
      *total.fold += *found[i].fold;
    }
    if (found[i].first_bad_row < 0) continue;
    refused_ = true;
    const Nvfp4Module& m = source_.nvfp4_modules()[target.sources[at].module];
    problems_.add(
        fmt::format("{}: expected block scales that are not negative and not NaN, found byte 0x{:02X} at{} "
                    "row {}, block {}",
                    source_.where(m.block_scale), found[i].first_bad_scale,
                    m.dialect->stacked ? fmt::format(" expert {},", target.sources[at].expert) : "",
                    found[i].first_bad_row, found[i].first_bad_group));
  }
}

std::vector<uint8_t> Conversion::own_bytes(const OutputTensor& t) const {
  const auto& values = plan_.scales[t.source].folded;
  std::vector<uint8_t> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

void Conversion::merge_derived(size_t i, const Deriver& deriver) {
  const OutputTensor& t = plan_.tensors[i];
  if (t.op == Op::kPrune) {
    const std::lock_guard lock(results_mutex_);
    for (const auto& [e, stats] : deriver.stats()) rewritten_[t.module][static_cast<size_t>(e)] += stats;
  }
  if (!deriver.bad_scale()) return;
  refused_ = true;
  const Nvfp4Module& m = source_.nvfp4_modules()[plan_.modules[t.module].module];
  const std::lock_guard lock(results_mutex_);
  problems_.add(
      fmt::format("{}: expected block scales that are not negative and not NaN, found byte 0x{:02X} at {}",
                  source_.where(m.block_scale), deriver.bad_scale()->byte, deriver.bad_scale()->at));
}

void Conversion::hash_source(const Job& job, size_t i, const Deriver& deriver) {
  const OutputTensor& t = plan_.tensors[i];
  if (t.module == OutputTensor::kNoModule || deriver.codes().empty()) return;
  SliceHashes& hashes = record_.modules[t.module];
  if (job.begin == 0 && (job.count > 1 || job.end == t.info.bytes())) {
    hashes.codes = hash_bytes(deriver.codes());
    if (!deriver.scales().empty()) hashes.scales = hash_bytes(deriver.scales());
    return;
  }
  turns_of_source(t.module).pass(job.turn, [&] {
    auto& hashers = source_hashers_[t.module];
    if (!hashers) hashers.emplace();
    hashers->codes.update(deriver.codes());
    hashers->scales.update(deriver.scales());
    if (job.end < t.info.bytes()) return;
    hashes.codes = hashers->codes.digest();
    if (!deriver.scales().empty()) hashes.scales = hashers->scales.digest();
    hashers.reset();
  });
}

void Conversion::copy(const Job& job, Deriver& deriver, std::vector<uint8_t>& buffer) {
  const uint64_t bytes = job.end - job.begin;
  if (buffer.size() < bytes) buffer.resize(bytes);
  const std::span<uint8_t> all(buffer.data(), bytes);
  uint64_t at = 0;
  for (size_t i = job.index; i < job.index + job.count; ++i) {
    const OutputTensor& t = plan_.tensors[i];
    const auto piece = all.subspan(at, job.count == 1 ? bytes : t.info.bytes());
    if (t.kind == OutputTensor::Kind::kCopy) {
      source_.read(t.source, job.begin, piece);
      bytes_read_ += piece.size();
      progress_.done += piece.size();
    } else if (t.kind == OutputTensor::Kind::kDerived) {
      const uint64_t before = deriver.bytes_read();
      deriver.derive(t, job.begin, piece);
      bytes_read_ += deriver.bytes_read() - before;
      progress_.done += deriver.bytes_read() - before;
      merge_derived(i, deriver);
      hash_source(job, i, deriver);
    } else {
      const auto own = own_bytes(t);
      std::copy(own.begin(), own.end(), piece.begin());
    }
    at += piece.size();
  }
  const OutputTensor& first = plan_.tensors[job.index];
  if (refused_) {
    if (all.size() < first.info.bytes()) turns_of_tensor(job.index).pass(job.turn, [] {});
    return;
  }
  open(first.file).write(offset_of(first) + job.begin, all);
  at = 0;
  for (size_t i = job.index; i < job.index + job.count; ++i) {
    const auto piece = all.subspan(at, job.count == 1 ? bytes : plan_.tensors[i].info.bytes());
    if (piece.size() == plan_.tensors[i].info.bytes()) {
      record_.outputs[i] = hash_bytes(piece);
    } else {
      turns_of_tensor(i).pass(job.turn, [&] {
        if (!hashers_[i]) hashers_[i].emplace();
        hashers_[i]->update(piece);
      });
    }
    at += piece.size();
  }
  write_done(first.file);
}

AtomicFile& Conversion::open(uint32_t f) {
  OpenFile& open = files_[f];
  const std::lock_guard lock(open.mutex);
  if (!open.file) {
    open.file.emplace(directory_.path() / plan_.files[f].name);
    open.file->resize(plan_.files[f].size());
    open.file->write(0, plan_.files[f].header);
  }
  return *open.file;
}

void Conversion::write_done(uint32_t f) {
  if (--files_[f].writes_left > 0) return;
  const OutputFile& file = plan_.files[f];
  const size_t end = file.first_tensor + file.tensor_count;
  for (size_t i = file.first_tensor; i < end; ++i) {
    if (!hashers_[i]) continue;  // hashed in one piece
    record_.outputs[i] = hashers_[i]->digest();
    hashers_[i].reset();
  }
  if (!options_.verify) {
    open(f).commit();
    return;
  }
  std::vector<Job> checks;
  for (size_t i = file.first_tensor; i < end;) {
    Job job{.kind = Job::Kind::kVerify, .index = i, .count = 0};
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

void Conversion::verify(const Job& job, std::vector<uint8_t>& buffer) {
  const uint32_t f = plan_.tensors[job.index].file;
  const AtomicFile& file = open(f);
  if (buffer.size() < kVerifyBytes) buffer.resize(kVerifyBytes);
  for (size_t i = job.index; i < job.index + job.count; ++i) {
    const OutputTensor& t = plan_.tensors[i];
    Hasher hasher;
    for (uint64_t at = 0; at < t.info.bytes(); at += kVerifyBytes) {
      const std::span<uint8_t> piece(buffer.data(), std::min(kVerifyBytes, t.info.bytes() - at));
      file.read(offset_of(t) + at, piece);
      hasher.update(piece);
      bytes_verified_ += piece.size();
      progress_.done += piece.size();
    }
    const Hash128 found = hasher.digest();
    if (found != record_.outputs[i]) {
      throw Error(fmt::format("{}: {}: expected hash {} as written, found {} when read back",
                              file.path().string(), t.info.name, record_.outputs[i].hex(), found.hex()));
    }
  }
  if (--files_[f].checks_left == 0) open(f).commit();
}

/// Sum of squared weights before folding and of their changes by it.
void add_fold(const FoldLoss& loss, float own, float folded, Quality& quality) {
  const auto table = fold_table(own, folded);
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (loss.energy[byte] == 0 || !e4m3_is_block_scale(byte)) continue;
    const double energy = 0.25 * static_cast<double>(loss.energy[byte]);
    const double before = static_cast<double>(e4m3_to_float(byte)) * own;
    const double after = static_cast<double>(e4m3_to_float(table[byte])) * folded;
    quality.fold_energy += energy * before * before;
    quality.fold_error += energy * (after - before) * (after - before);
  }
}

ConversionRecord Conversion::finish_record() {
  for (size_t t = 0; t < plan_.targets.size(); ++t) {
    Quality quality;
    std::vector<SliceHashes> slices;
    for (size_t i = 0; i < results_[t].size(); ++i) {
      const SourceResult& r = results_[t][i];
      const float folded = plan_.scales[t].folded[i / plan_.targets[t].sources_per_expert];
      quality.add(r.stats, static_cast<double>(folded));
      if (r.fold) add_fold(*r.fold, plan_.scales[t].own[i], folded, quality);
      slices.push_back({r.codes_hash, r.scales_hash});
    }
    record_.quality.push_back(quality);
    record_.slices.push_back(std::move(slices));
  }
  for (size_t m = 0; m < plan_.modules.size(); ++m) {
    Quality& quality = record_.quality.emplace_back();
    for (size_t e = 0; e < rewritten_[m].size(); ++e) {
      quality.add(rewritten_[m][e], plan_.modules[m].multipliers[e]);
    }
  }
  // What goes along as it is has the same hash on both sides.
  for (size_t i = 0; i < plan_.tensors.size(); ++i) {
    const OutputTensor& t = plan_.tensors[i];
    if (t.module == OutputTensor::kNoModule) continue;
    const Nvfp4Module& m = source_.nvfp4_modules()[plan_.modules[t.module].module];
    if (t.op == Op::kBlockScales) record_.modules[t.module].scales = record_.outputs[i];
    if (t.op == Op::kNone && t.source == m.codes) record_.modules[t.module].codes = record_.outputs[i];
  }
  return std::move(record_);
}

void copy_sidecar(const std::filesystem::path& from, const std::filesystem::path& to) {
  const InputFile in(from);
  AtomicFile out(to);
  std::vector<uint8_t> buffer(1u << 20);
  for (uint64_t at = 0; at < in.size(); at += buffer.size()) {
    check_interrupt();
    const std::span<uint8_t> piece(buffer.data(), std::min<uint64_t>(buffer.size(), in.size() - at));
    in.read(at, piece);
    out.write(at, piece);
  }
  out.commit();
}

void report_folds(const Plan& plan, const std::vector<Quality>& quality, Findings& findings) {
  for (size_t t = 0; t < quality.size(); ++t) {
    if (quality[t].fold_energy == 0) continue;
    findings.push_back(
        {Severity::kWarning, "fold-loss", plan.targets[t].name,
         fmt::format(
             "rounding the folded block scales changed the weights concerned by {:.3g} in relative norm",
             std::sqrt(quality[t].fold_error / quality[t].fold_energy))});
  }
}

}  // namespace

ConvertResult convert(const Checkpoint& source, const Plan& plan, const std::filesystem::path& destination,
                      const ConvertOptions& options, Progress& progress) {
  const auto start = std::chrono::steady_clock::now();
  progress.total = plan.read_bytes + (options.verify ? plan.data_bytes : 0);
  OutputDirectory directory(destination, source.path(), options.force);
  for (const auto& [name, bytes] : plan.sidecars) {
    if (is_copied_sidecar(plan, name)) copy_sidecar(source.path() / name, directory.add(name));
  }
  for (const auto& [name, text] : artifact_texts(source, plan)) write_text(directory.add(name), text);
  for (const OutputFile& file : plan.files) directory.add(file.name);

  Conversion conversion(source, plan, options, directory, progress);
  conversion.run();
  ConversionRecord record = conversion.finish_record();

  progress.phase = "finishing";
  write_text(directory.add(kIndexName), artifact_index(plan));
  write_manifest(directory.add(kManifestName), source, plan, record);
  directory.finish();

  ConvertResult result;
  result.bytes_read = conversion.bytes_read();
  result.bytes_verified = conversion.bytes_verified();
  for (const OutputFile& file : plan.files) result.bytes_written += file.size();
  result.findings = plan.findings;
  for (const Target& t : plan.targets) result.modules.push_back({t.name, t.shape});
  for (const ModulePlan& p : plan.modules) {
    const Nvfp4Module& m = source.nvfp4_modules()[p.module];
    result.modules.push_back({m.name, {m.e, m.n, m.k}});
  }
  report_folds(plan, record.quality, result.findings);
  result.quality = std::move(record.quality);
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return result;
}

}  // namespace twofour
