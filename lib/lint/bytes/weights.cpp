#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <mutex>

#include "formats/e4m3.h"
#include "formats/json/access.h"
#include "lib/base/threads/interrupt.h"
#include "lib/base/threads/job_queue.h"
#include "lib/lint/bytes/checks.h"
#include "lib/lint/bytes/figures.h"
#include "lib/lint/bytes/tensor_scan.h"

namespace twofour {
namespace {

/// Number of bytes, of codes or of another tensor, that are read at once.
constexpr uint64_t kPiece = 1u << 18;
constexpr uint64_t kJob = 64u << 20;  ///< number of bytes that one job of a thread covers

/// A range of lines of a module or another tensor. Its matrices follow each other.
struct Job {
  size_t module, tensor;  ///< one of them is kNone; if both are, the job calls `beside`
  uint64_t begin, end;    ///< lines [begin, end)
  static constexpr size_t kNone = SIZE_MAX;
};

class WeightLint {
 public:
  WeightLint(const LintInput& s, std::optional<Manifest> manifest, LintReporter& reporter, Progress& progress)
      : s_(s), manifest_(std::move(manifest)), sink_(reporter), progress_(progress) {
    for (const Rule& rule : manifest_ ? manifest_->recipe.rules : std::vector<Rule>{}) {
      if (rule.to == "prune") pattern_ = rule.pattern.text(), claimed_by_ = "twofour.json";
    }
    const bool claims = member(member(s.quantization, "sparsity_config"), "sparsity_structure") == "2:4";
    if (claims && pattern_.empty()) pattern_ = "2:4", claimed_by_ = "sparsity_config";
    plan();
  }

  std::vector<MatrixFigures> run(int threads, const std::function<void()>& beside) {
    for (const Job& job : jobs_) progress_.total += bytes_of(job);
    JobQueue<Job> queue(jobs_);
    queue.add({Job::kNone, Job::kNone, 0, 0});
    queue.run(
        threads,
        [this, &beside] {
          return [this, &beside, codes = std::vector<uint8_t>(),
                  scales = std::vector<uint8_t>()](const Job& job) mutable {
            if (job.module != Job::kNone) {
              count_module(job, codes, scales);
            } else if (job.tensor != Job::kNone) {
              count_tensor(job, codes);
            } else {
              beside();
            }
          };
        },
        [] {});
    for (const auto& [tensor, hash] : hashes_) lint_tensor_hash(s_, *manifest_, tensor, hash, sink_);
    for (size_t i = 0; i < modules_.size(); ++i) {
      if (s_.is_whole(s_.modules[i])) report_module(s_.modules[i], modules_[i]);
    }
    for (const auto& [tensor, counts] : tensors_) report_tensor(tensor, counts);
    std::sort(figures_.begin(), figures_.end(), [](const MatrixFigures& a, const MatrixFigures& b) {
      return std::pair(a.tensor, a.expert) < std::pair(b.tensor, b.expert);
    });
    return std::move(figures_);
  }

 private:
  size_t tensor_of(const Job& job) const {
    return job.module != Job::kNone ? s_.modules[job.module].codes : job.tensor;
  }
  uint64_t bytes_of(const Job& job) const {
    const MatrixPlan& plan = plans_.at(tensor_of(job));
    return std::min((job.end - job.begin) * (plan.line_bytes + plan.scale_bytes),
                    job.module != Job::kNone ? UINT64_MAX : s_.tensors[job.tensor].bytes());
  }

  void plan() {
    modules_.resize(s_.modules.size());
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
      if (is_scale[t] && !manifest_) continue;
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

  /// Adds jobs for a tensor. With a manifest, a tensor is one job, since its hash needs the bytes in order.
  void add_jobs(size_t module, size_t tensor, const MatrixPlan& plan) {
    plans_.emplace(tensor, plan);
    const uint64_t count = plan.matrices * plan.lines;
    uint64_t step = std::max<uint64_t>(1, kJob / std::max<uint64_t>(1, plan.line_bytes));
    if (manifest_) step = std::max<uint64_t>(count, 1);
    for (uint64_t at = 0; at < count || at == 0; at += step) {
      jobs_.push_back({module, module == Job::kNone ? tensor : Job::kNone, at, std::min(count, at + step)});
    }
  }

  /// Calls `work(line, count, counter)` for pieces of a job's lines. Each piece is within one matrix. `line`
  /// is counted over all matrices.
  template <class Work>
  void for_each_piece(const Job& job, const MatrixPlan& plan, const Work& work) {
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

  void keep_figures(const Job& job, uint64_t matrix, FigureCounter counter) {
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
    figures_.push_back(*done);
  }

  void keep_hash(size_t tensor, const Hash128& hash) {
    const std::lock_guard lock(mutex_);
    hashes_.emplace(tensor, hash);
  }

  void count_module(const Job& job, std::vector<uint8_t>& codes, std::vector<uint8_t>& scales) {
    const Nvfp4Linear& m = s_.modules[job.module];
    const MatrixPlan& plan = plans_.at(m.codes);
    BlockCounts counts;
    std::optional<Hasher> code_hash, scale_hash;  // set only with a manifest
    if (manifest_) code_hash.emplace(), scale_hash.emplace();
    const bool is_pruned =
        !pattern_.empty() && !m.k_outer && (!manifest_ || manifest_->shapes.count(m.name) > 0);
    for_each_piece(job, plan, [&](uint64_t line, uint64_t lines, FigureCounter& counter) {
      const uint64_t at = line * plan.scale_bytes, blocks = lines * plan.scale_bytes;
      codes.resize(std::max(codes.size(), 8 * blocks));
      scales.resize(std::max(scales.size(), blocks));
      const std::span<uint8_t> c(codes.data(), 8 * blocks), b(scales.data(), blocks);
      s_.read(m.codes, 8 * at, c);
      s_.read(m.block_scale, at, b);
      BlockCounts own;
      if (m.k_outer) {
        count_blocks_k_outer(c.data(), b.data(), lines, plan.scale_bytes, at, own);
      } else {
        count_blocks(c.data(), b.data(), blocks, at, own);
      }
      if (is_pruned) count_pattern(c, pattern_, 2 * at, own);
      if (manifest_) {
        code_hash->update(c);
        scale_hash->update(b);
      }
      counter.add(c, b);
      counter.note_amax(own.amax * 0x1p-10);
      counts += own;
      progress_.done += c.size() + b.size();
    });
    if (manifest_) {
      keep_hash(m.codes, code_hash->digest());
      keep_hash(m.block_scale, scale_hash->digest());
    }
    const std::lock_guard lock(mutex_);
    modules_[job.module] += counts;
  }

  void count_tensor(const Job& job, std::vector<uint8_t>& buffer) {
    const TensorScan& scan = scans_.at(job.tensor);
    const MatrixPlan& plan = plans_.at(job.tensor);
    const uint64_t bytes_of_matrix = s_.tensors[job.tensor].bytes() / plan.matrices;
    TensorCounts counts;
    std::optional<Hasher> hash;
    if (manifest_) hash.emplace();
    for_each_piece(job, plan, [&](uint64_t line, uint64_t lines, FigureCounter& counter) {
      const uint64_t matrix = line / plan.lines, first = (line % plan.lines) * plan.line_bytes;
      const uint64_t at = matrix * bytes_of_matrix + first;
      const uint64_t count = std::min(lines * plan.line_bytes, bytes_of_matrix - first);
      buffer.resize(std::max(buffer.size(), count));
      const std::span<uint8_t> bytes(buffer.data(), count);
      s_.read(job.tensor, at, bytes);
      if (hash) hash->update(bytes);
      counter.add(bytes, {});
      TensorCounts own;
      scan_bytes(scan, at, bytes, counter.half_range(), own);
      if (plan.kind == NumberKind::kE4m3 && !e4m3_is_nan(own.largest))
        counter.note_amax(double{e4m3_to_float(own.largest)});
      counts += own;
      progress_.done += bytes.size();
    });
    if (manifest_) keep_hash(job.tensor, hash->digest());
    const std::lock_guard lock(mutex_);
    tensors_[job.tensor] += counts;
  }

  void report_scales(size_t tensor, const BlockCounts& c) {
    if (c.nan + c.negative == 0) return;
    sink_.add("bad-block-scale", s_.at(tensor),
              "expected scales of 0 to 448, found {} NaN and {} negative of {}, the first at byte {}{}",
              c.nan, c.negative, c.blocks, c.first_bad,
              c.negative > 0
                  ? "; a set sign bit may choose another code table, as in IF4 and RaZeR, which are "
                    "not supported"
                  : "");
  }

  void report_module(const Nvfp4Linear& m, const BlockCounts& c) {
    const std::string& scale_file = s_.file_of(m.block_scale);
    const std::string& scale = s_.tensors[m.block_scale].name;
    report_scales(m.block_scale, c);
    if (c.blocks == 0) return;
    if (!c.any_code) return;  // lint_content() reports matrices of zeros
    if (c.vanished > 0) {
      sink_.add(
          "zero-scale", {scale_file, scale},
          "expected no scale 0 above codes other than zero, found {} of {} blocks, the first at byte {}",
          c.vanished, c.blocks, c.first_vanished);
    }
    // In a sound tensor, a few blocks are within 4 % of the maximum. In a small tensor, chance adds some
    // blocks.
    constexpr uint64_t kFewBlocks = 16;
    if (c.top > kFewBlocks + c.blocks / 100) {
      sink_.add("saturated-scales", {scale_file, scale},
                "expected at most {} of {} blocks at 448, found {}, of which {} hold a code of 6",
                kFewBlocks + c.blocks / 100, c.blocks, c.top, c.top_full);
    }
    if (c.subnormal > 0 && c.subnormal + c.zero == c.blocks) {
      sink_.add("subnormal-scales", {scale_file, scale},
                "expected scales of 2^-6 and more, found none in {} blocks", c.blocks);
    }
    if (c.dense > 0) {
      sink_.add("not-2-4", s_.at(m.codes),
                fmt::format("expected {} in every group ({}), found {} of {} groups of eight that are not, "
                            "the first at byte {}",
                            pattern_, claimed_by_, c.dense, c.groups, 4 * c.first_dense),
                LintFacts{.key = claimed_by_});
    }
  }

  void report_tensor(size_t tensor, const TensorCounts& c) {
    const TensorInfo& t = s_.tensors[tensor];
    const std::string& file = s_.file_of(tensor);
    const TensorCheck check = scans_.at(tensor).check;
    report_scales(tensor, c.scales);
    const bool meta = check == TensorCheck::kMeta || check == TensorCheck::kPart;
    if (c.wrong > 0 && meta) {
      sink_.add("meta-nibbles", {file, t.name},
                "expected nibbles 4, 8, 9, C, D or E, found {} bytes with others, the first at byte {}",
                c.wrong, c.first);
    } else if (c.wrong > 0 && check == TensorCheck::kE8m0) {
      sink_.add("mxfp4-nan-scale", {file, t.name}, "expected no scale 0xFF, found {}, the first at byte {}",
                c.wrong, c.first);
    } else if (c.wrong > 0 && !is_scale_number(t.name)) {
      sink_.add("not-finite", {file, t.name},
                "expected finite numbers, found {} that are not, the first at element {}{}", c.wrong, c.first,
                order_of(tensor));
    }
    if (c.huge > 0 && t.name.ends_with("weight")) {
      sink_.add("implausible-weights", {file, t.name},
                "expected numbers below 1e19, found {} beyond, the first at element {}{}", c.huge,
                c.first_huge, order_of(tensor));
    }
    if (c.negative > 0) {
      sink_.add("bad-block-scale", {file, t.name},
                "expected scales that are not negative, found {}, the first at element {}", c.negative,
                c.first_negative);
    }
    if (c.zero > 0) report_zero_scales(tensor, c);
    if (c.copies > 0)
      sink_.add("scale-copies", {file, t.name},
                "expected equal copies, found {} bytes that differ, the first at byte {}", c.copies,
                c.first_copy);
    if (c.padding > 0)
      sink_.add("padding", {file, t.name}, "expected zeros, found {} other bytes, the first at byte {}",
                c.padding, c.first_padding);
  }

  /// Describes the order of a tensor's bytes if they seem to be exchanged.
  std::string_view order_of(size_t tensor) const {
    constexpr uint64_t kMost = 1u << 16;
    if (s_.tensors[tensor].dtype != DType::kBF16) return "";
    std::vector<uint8_t> bytes(std::min(kMost, s_.tensors[tensor].bytes()));
    s_.read(tensor, 0, bytes);
    return has_exchanged_bytes(bytes) ? ", as if the two bytes of a number were exchanged or shifted" : "";
  }

  /// Reports zero scales of FP8 and INT4. Rows or blocks of zeros may have them.
  void report_zero_scales(size_t tensor, const TensorCounts& c) {
    const TensorInfo &scale = s_.tensors[tensor], &weight = s_.tensors[*scans_.at(tensor).scaled];
    uint64_t zero_lines = 0, zero_columns = 0;
    for (const MatrixFigures& f : figures_) {
      if (f.tensor != *scans_.at(tensor).scaled) continue;
      zero_lines += f.zero_lines;
      zero_columns += f.zero_columns;
    }
    uint64_t count = 1;
    for (const int64_t n : scale.shape) count *= static_cast<uint64_t>(n);
    const bool a_row = scale.shape.empty() || scale.shape.back() == 1;
    const bool has_zeros = a_row && count > 1 ? c.zero <= zero_lines : zero_lines + zero_columns > 0;
    // If all weights of an INT4 group were zero, its scale may be zero and its codes may be anything.
    const bool few = scans_.at(tensor).scales_integers && 16 * c.zero <= count;
    if (has_zeros || few || (count == 1 && !tensors_.at(*scans_.at(tensor).scaled).any)) return;
    sink_.add("zero-scale", s_.at(tensor),
              "expected no scale 0 above weights other than zero, found {} of {}, the first at element {}{}",
              c.zero, count, c.first_zero,
              zero_lines > 0 ? fmt::format(", and in {} {} zero rows", weight.name, zero_lines) : "");
  }

  /// True for scales that other rules check.
  bool is_scale_number(std::string_view name) const {
    return is_input_scale(name) || name.ends_with(".k_scale") || name.ends_with(".v_scale") ||
           name.ends_with("_scale_2") || name.ends_with("_global_scale");
  }

  const LintInput& s_;
  const std::optional<Manifest> manifest_;
  LintReporter& sink_;
  Progress& progress_;
  std::string pattern_, claimed_by_;  ///< the pattern that the checkpoint claims, and the place of the claim
  std::vector<Job> jobs_;
  std::map<size_t, TensorScan> scans_;
  std::mutex mutex_;
  std::map<size_t, MatrixPlan> plans_;                          ///< plans by the tensor of codes or values
  std::map<std::pair<size_t, uint64_t>, FigureCounter> parts_;  ///< figures of matrices that several jobs
                                                                ///< share
  std::vector<MatrixFigures> figures_;
  std::map<size_t, Hash128> hashes_;  ///< reported last, so that `beside` does not see these findings
  std::vector<BlockCounts> modules_;
  std::map<size_t, TensorCounts> tensors_;
};

}  // namespace

std::vector<MatrixFigures> lint_weights(const LintInput& s, int jobs, const std::function<void()>& beside,
                                        LintReporter& reporter, Progress& progress) {
  return WeightLint(s, lint_manifest(s, reporter), reporter, progress).run(jobs, beside);
}

}  // namespace twofour
