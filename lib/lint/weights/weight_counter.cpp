#include "lib/lint/weights/weight_counter.h"

#include <algorithm>
#include <utility>

#include "formats/e4m3.h"
#include "lib/base/threads/interrupt.h"

namespace twofour {
namespace {

/// Number of bytes, of codes or of another tensor, that are read at once.
constexpr uint64_t kPiece = 1u << 18;
constexpr uint64_t kJob = 64u << 20;  ///< number of bytes that one job of a thread covers

}  // namespace

WeightCounter::WeightCounter(const LintInput& input, bool hashes, std::string pattern,
                             std::function<bool(const Nvfp4Linear&)> pruned)
    : s_(input), hashes_wanted_(hashes), pattern_(std::move(pattern)), pruned_(std::move(pruned)) {
  plan();
}

uint64_t WeightCounter::bytes_of(const Job& job) const {
  const MatrixPlan& plan = plans_.at(tensor_of(job));
  return std::min((job.end - job.begin) * (plan.line_bytes + plan.scale_bytes),
                  job.module != Job::kNone ? UINT64_MAX : s_.tensors[job.tensor].bytes());
}

void WeightCounter::plan() {
  std::vector<size_t> owner(s_.tensors.size(), Job::kNone);
  std::vector<bool> is_scale(s_.tensors.size());  // lint_scalars() reads these
  for (size_t i = 0; i < s_.modules.size(); ++i) {
    const Nvfp4Linear& m = s_.modules[i];
    if (!s_.is_whole(m)) continue;
    owner[m.codes] = owner[m.block_scale] = i;
    is_scale[m.global_scale] = true;
    if (m.input_scale) is_scale[*m.input_scale] = true;
  }
  // Jobs are in the order of the file, so that disks read ahead.
  std::vector<size_t> order;
  for (size_t t = 0; t < s_.tensors.size(); ++t) {
    if (s_.whole[t]) order.push_back(t);
  }
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return std::pair(s_.shard_of[a], s_.tensors[a].begin) < std::pair(s_.shard_of[b], s_.tensors[b].begin);
  });
  for (const size_t t : order) {
    if (is_scale[t] && !hashes_wanted_) continue;
    if (owner[t] == Job::kNone) {
      const TensorScan& scan = scans_.emplace(t, plan_tensor_scan(s_, t)).first->second;
      const bool is_part = scan.check == TensorCheck::kPart || scan.check == TensorCheck::kMeta;
      const NumberKind kind = is_part                            ? NumberKind::kUnknown
                              : scan.check == TensorCheck::kE8m0 ? NumberKind::kE8m0
                                                                 : value_format(s_, t).kind;
      add_jobs(Job::kNone, t, plan_tensor_figures(s_, t, kind, is_part ? scan.unit : 0));
    } else if (s_.modules[owner[t]].codes == t) {
      add_jobs(owner[t], t, plan_module_figures(s_.modules[owner[t]]));
    }
  }
}

/// Adds jobs for a tensor.
void WeightCounter::add_jobs(size_t module, size_t tensor, const MatrixPlan& plan) {
  plans_.emplace(tensor, plan);
  const uint64_t count = plan.matrices * plan.lines;
  uint64_t step = std::max<uint64_t>(1, kJob / std::max<uint64_t>(1, plan.line_bytes));
  if (hashes_wanted_) step = std::max<uint64_t>(count, 1);
  for (uint64_t at = 0; at < count || at == 0; at += step) {
    jobs_.push_back({module, module == Job::kNone ? tensor : Job::kNone, at, std::min(count, at + step)});
  }
}

/// Calls `work(line, count, counter)` for pieces of a job's lines. Each piece is within one matrix. `line`
/// is counted over all matrices.
template <class Work>
void WeightCounter::for_each_piece(const Job& job, const MatrixPlan& plan, const Work& work) {
  const uint64_t most = std::max<uint64_t>(1, kPiece / std::max<uint64_t>(1, plan.line_bytes));
  for (uint64_t at = job.begin; at < job.end;) {
    const uint64_t matrix = at / plan.lines, end = std::min(job.end, (matrix + 1) * plan.lines);
    FigureCounter counter(plan, at - matrix * plan.lines, end - at);
    for (; at < end;) {
      check_interrupt();
      const uint64_t count = std::min(most, end - at);
      work(at, count, counter);
      at += count;
    }
    counter.finish();
    keep_figures(job, matrix, std::move(counter));
  }
}

void WeightCounter::keep_figures(const Job& job, uint64_t matrix, FigureCounter counter) {
  const size_t tensor = tensor_of(job);
  std::optional<MatrixFigures> done;
  if (counter.is_complete()) done = counter.figures();
  const std::lock_guard lock(mutex_);
  if (!done) {
    const auto [at, is_first] = parts_.try_emplace({tensor, matrix}, counter);
    if (!is_first) at->second.merge(counter);
    if (!at->second.is_complete()) return;
    done = at->second.figures();
    parts_.erase(at);
  }
  done->tensor = tensor;
  done->module = job.module;
  if (done->plan.matrices > 1) done->expert = static_cast<int64_t>(matrix);
  figures_[tensor].push_back(*done);
}

void WeightCounter::count_module(const Job& job, const Read& read, Buffers& buffers, Progress& progress) {
  const Nvfp4Linear& m = s_.modules[job.module];
  const MatrixPlan& plan = plans_.at(m.codes);
  BlockCounts counts;
  std::optional<Hasher> code_hash, scale_hash;
  if (hashes_wanted_) code_hash.emplace(), scale_hash.emplace();
  const bool has_pattern = is_pruned(m);
  std::vector<uint8_t>&codes = buffers.codes, &scales = buffers.scales;
  for_each_piece(job, plan, [&](uint64_t line, uint64_t lines, FigureCounter& counter) {
    const uint64_t at = line * plan.scale_bytes, blocks = lines * plan.scale_bytes;
    codes.resize(std::max(codes.size(), 8 * blocks));
    scales.resize(std::max(scales.size(), blocks));
    const std::span<uint8_t> c(codes.data(), 8 * blocks), b(scales.data(), blocks);
    read(m.codes, 8 * at, c);
    read(m.block_scale, at, b);
    BlockCounts own;
    if (m.k_outer) {
      count_blocks_k_outer(c.data(), b.data(), lines, plan.scale_bytes, at, own);
    } else {
      count_blocks(c.data(), b.data(), blocks, at, own);
    }
    if (has_pattern) count_pattern(c, pattern_, 2 * at, own);
    if (hashes_wanted_) {
      code_hash->update(c);
      scale_hash->update(b);
    }
    counter.add(c, b);
    counter.note_amax(own.amax * 0x1p-10);
    counts += own;
    progress.done += c.size() + b.size();
  });
  const std::lock_guard lock(mutex_);
  if (hashes_wanted_) {
    hashes_.emplace(m.codes, code_hash->digest());
    hashes_.emplace(m.block_scale, scale_hash->digest());
  }
  modules_[m.codes] += counts;
}

void WeightCounter::count_tensor(const Job& job, const Read& read, std::vector<uint8_t>& buffer,
                                 Progress& progress) {
  const TensorScan& scan = scans_.at(job.tensor);
  const MatrixPlan& plan = plans_.at(job.tensor);
  const uint64_t bytes_of_matrix = s_.tensors[job.tensor].bytes() / plan.matrices;
  TensorCounts counts;
  std::optional<Hasher> hash;
  if (hashes_wanted_) hash.emplace();
  for_each_piece(job, plan, [&](uint64_t line, uint64_t lines, FigureCounter& counter) {
    const uint64_t matrix = line / plan.lines, first = (line % plan.lines) * plan.line_bytes;
    const uint64_t at = matrix * bytes_of_matrix + first;
    const uint64_t count = std::min(lines * plan.line_bytes, bytes_of_matrix - first);
    buffer.resize(std::max(buffer.size(), count));
    const std::span<uint8_t> bytes(buffer.data(), count);
    read(job.tensor, at, bytes);
    if (hash) hash->update(bytes);
    counter.add(bytes, {});
    TensorCounts own;
    scan_bytes(scan, at, bytes, counter.half_range(), own);
    if (plan.kind == NumberKind::kE4m3 && !e4m3_is_nan(own.largest))
      counter.note_amax(double{e4m3_to_float(own.largest)});
    counts += own;
    progress.done += bytes.size();
  });
  const std::lock_guard lock(mutex_);
  if (hash) hashes_.emplace(job.tensor, hash->digest());
  tensors_[job.tensor] += counts;
}

void WeightCounter::count(const Job& job, const Read& read, Buffers& buffers, Progress& progress) {
  if (job.module != Job::kNone) {
    count_module(job, read, buffers, progress);
  } else {
    count_tensor(job, read, buffers.codes, progress);
  }
}

std::optional<Hash128> WeightCounter::hash_of(size_t tensor) const {
  const std::lock_guard lock(mutex_);
  const auto at = hashes_.find(tensor);
  return at == hashes_.end() ? std::nullopt : std::optional(at->second);
}

void WeightCounter::take(const WeightCounter& other) {
  std::erase_if(jobs_, [&](const Job& job) { return take(job, other); });
}

/// Takes over the counts of a job whose tensors have the same names, shapes and checks in `other`.
bool WeightCounter::take(const Job& job, const WeightCounter& other) {
  const size_t mine = tensor_of(job);
  const auto theirs = other.s_.find(s_.tensors[mine].name);
  const auto hash = theirs ? other.hashes_.find(*theirs) : other.hashes_.end();
  if (hash == other.hashes_.end()) return false;
  const auto plan = other.plans_.find(*theirs);
  if (plan == other.plans_.end() || !(plan->second == plans_.at(mine))) return false;
  if (job.module != Job::kNone) {
    const Nvfp4Linear& m = s_.modules[job.module];
    const auto scales = other.s_.find(s_.tensors[m.block_scale].name);
    const auto scale_hash = scales ? other.hashes_.find(*scales) : other.hashes_.end();
    const auto counts = other.modules_.find(*theirs);
    if (scale_hash == other.hashes_.end() || counts == other.modules_.end() || is_pruned(m)) return false;
    modules_[mine] = counts->second;
    hashes_[m.block_scale] = scale_hash->second;
  } else {
    const TensorScan &scan = scans_.at(mine), &scanned = other.scans_.at(*theirs);
    if (scan.check != scanned.check || scan.check == TensorCheck::kPart ||
        scan.scaled.has_value() != scanned.scaled.has_value() ||
        scan.scales_integers != scanned.scales_integers)
      return false;
    tensors_[mine] = other.tensors_.at(*theirs);
  }
  hashes_[mine] = hash->second;
  if (const auto figures = other.figures_.find(*theirs); figures != other.figures_.end()) {
    for (MatrixFigures f : figures->second) {
      f.tensor = mine;
      f.module = job.module;
      figures_[mine].push_back(f);
    }
  }
  return true;
}

std::vector<MatrixFigures> WeightCounter::figures() const {
  std::vector<MatrixFigures> all;
  for (const auto& [tensor, figures] : figures_) all.insert(all.end(), figures.begin(), figures.end());
  std::sort(all.begin(), all.end(), [](const MatrixFigures& a, const MatrixFigures& b) {
    return std::pair(a.tensor, a.expert) < std::pair(b.tensor, b.expert);
  });
  return all;
}

}  // namespace twofour
