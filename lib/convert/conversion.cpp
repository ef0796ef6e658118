#include "lib/convert/conversion.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "formats/atom.h"
#include "formats/error.h"
#include "lib/threads/interrupt.h"

namespace twofour {
namespace {

/// Tensors are copied in pieces of this size, small ones together up to it.
constexpr uint64_t kCopyBytes = 4u << 20;
/// Written tensors are read back in pieces that stay in the L2 cache, small ones together up to kVerifyBatch.
constexpr uint64_t kVerifyBytes = 512u << 10;
constexpr uint64_t kVerifyBatch = 32u << 20;

}  // namespace

void Conversion::run() {
  std::vector<Job> jobs = list_jobs();
  std::erase_if(jobs, [&](const Job& job) { return files_of(job).empty(); });
  for (const Job& job : jobs) {
    const bool writes = job.kind != Job::Kind::kHash;
    for (const uint32_t f : files_of(job)) ++(writes ? files_[f].writes_left : files_[f].results_left);
  }
  progress_.phase = "converting";
  queue_.emplace(std::move(jobs));
  queue_->run(
      plan_.workers(options_.jobs, options_.device), [this] { return make_worker(); },
      [this] {
        for (Turnstile& t : turns_) t.stop();
      });
  for (const auto& [source, bad] : bad_scales_) {
    problems_.add(
        fmt::format("{}: expected block scales that are not negative and not NaN, found byte 0x{:02X} at{}",
                    source_.where(source.first), bad.first.byte, bad.second));
  }
  problems_.refuse();
}

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
  list_encodings(jobs);
  list_copies(jobs);
  return jobs;
}

void Conversion::list_copies(std::vector<Job>& jobs) const {
  const auto has_own_job = [](const OutputTensor& t) {
    return t.kind == OutputTensor::Kind::kPart || t.kind == OutputTensor::Kind::kEncoded;
  };
  for (size_t i = 0; i < plan_.tensors.size(); ++i) {
    const OutputTensor& t = plan_.tensors[i];
    if (has_own_job(t)) continue;
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
    while (i + 1 < plan_.tensors.size() && !has_own_job(plan_.tensors[i + 1]) &&
           plan_.tensors[i + 1].file == t.file &&
           batch.end + plan_.tensors[i + 1].info.bytes() <= kCopyBytes) {
      batch.end += plan_.tensors[++i].info.bytes();
      ++batch.count;
    }
    jobs.push_back(batch);
  }
}

std::vector<uint32_t> Conversion::files_of(const Job& job) const {
  std::vector<uint32_t> files;
  const auto add = [&](size_t tensor) {
    if (is_wanted(tensor)) files.push_back(plan_.tensors[tensor].file);
  };
  switch (job.kind) {
    case Job::Kind::kPack:
    case Job::Kind::kHash:
      for (const size_t i : plan_.parts_of(job.index)) add(i);
      break;
    case Job::Kind::kEncode:
      for (const size_t i : plan_.tensors_of(plan_.groups[job.index])) add(i);
      break;
    case Job::Kind::kCopy:
    case Job::Kind::kVerify:
      add(job.index);
      break;
  }
  return files;
}

std::function<void(const Job&)> Conversion::make_worker() {
  std::shared_ptr<ExpertPacker> packer;
  if (!plan_.targets.empty())
    packer = std::make_shared<ExpertPacker>(source_, plan_, options_.isa, options_.device);
  auto deriver = std::make_shared<Deriver>(source_, plan_);
  std::shared_ptr<Encoder> encoder;
  if (!plan_.groups.empty()) {
    encoder = std::make_shared<Encoder>(source_, plan_, options_.kept, options_.isa);
  }
  auto buffer = std::make_shared<std::vector<uint8_t>>();
  return [this, packer, deriver, encoder, buffer](const Job& job) {
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
      case Job::Kind::kEncode:
        encode(job, *encoder);
        break;
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
    for (const uint32_t f : files_of(job)) result_done(f);
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

  std::vector<size_t> tensors = plan_.parts_of(job.index);
  std::erase_if(tensors, [&](size_t i) { return !is_wanted(i); });
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
    const Nvfp4Module& m = source_.nvfp4_modules()[target.sources[at].module];
    const int64_t expert = m.dialect->stacked ? target.sources[at].expert : 0;
    const int64_t place = (expert * m.n + found[i].first_bad_row) * (m.k / kGroup) + found[i].first_bad_group;
    refuse_scale(
        {m.block_scale, expert}, {static_cast<uint64_t>(place), found[i].first_bad_scale},
        fmt::format("{} row {}, block {}", m.dialect->stacked ? fmt::format(" expert {},", expert) : "",
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
  if (deriver.bad_scale()) {
    const BadScale& bad = *deriver.bad_scale();
    refuse_scale({source_.nvfp4_modules()[plan_.modules[t.module].module].block_scale, 0}, bad,
                 fmt::format(" {}", bad.at));
  }
}

void Conversion::refuse_scale(ScaleSource source, const BadScale& bad, const std::string& where) {
  refused_ = true;
  const std::lock_guard lock(bad_scales_mutex_);
  // A tensor is read in pieces, in any order.
  const auto [at, is_new] = bad_scales_.try_emplace(source);
  if (is_new || bad.at < at->second.first.at) at->second = {bad, where};
}

void Conversion::hash_source(const Job& job, size_t i, const Deriver& deriver) {
  const OutputTensor& t = plan_.tensors[i];
  if (t.module == OutputTensor::kNoModule || deriver.codes().empty()) return;
  SliceHashes& hashes = modules_[t.module];
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
      if (is_block_scale_[t.source]) {
        if (const auto bad = find_bad_scale(job.begin, piece))
          refuse_scale({t.source, 0}, *bad, fmt::format(" {}", bad->at));
      }
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
      outputs_[i] = hash_bytes(piece);
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
    if (!hashers_[i]) continue;  // hashed in one piece
    outputs_[i] = hashers_[i]->digest();
    hashers_[i].reset();
  }
  if (!options_.verify) {
    commit(f);
    return;
  }
  open(f).flush();  // so that the disk answers, and not the page cache
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
    if (found != outputs_[i]) {
      throw Error(fmt::format("{}: {}: expected hash {} as written, found {} when read back",
                              file.path().string(), t.info.name, outputs_[i].hex(), found.hex()));
    }
  }
  if (--files_[f].checks_left == 0) commit(f);
}

}  // namespace twofour
