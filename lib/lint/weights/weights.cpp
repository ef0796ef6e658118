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
#include "lib/lint/weights/written_weights.h"

namespace twofour {
namespace {

class WeightLint {
 public:
  WeightLint(const LintInput& s, std::optional<Manifest> manifest, const WrittenWeights* written,
             LintReporter& reporter, Progress& progress)
      : s_(s), manifest_(std::move(manifest)), sink_(reporter), progress_(progress) {
    for (const Rule& rule : manifest_ ? manifest_->recipe.rules : std::vector<Rule>{}) {
      if (rule.to == "prune") pattern_ = rule.pattern.text(), claimed_by_ = "twofour.json";
    }
    const bool claims = member(member(s.quantization, "sparsity_config"), "sparsity_structure") == "2:4";
    if (claims && pattern_.empty()) pattern_ = "2:4", claimed_by_ = "sparsity_config";
    counter_.emplace(s_, manifest_.has_value(), pattern_, [this](const Nvfp4Linear& m) {
      return !manifest_ || manifest_->shapes.count(m.name) > 0;
    });
    if (manifest_ && written != nullptr) counter_->take(written->counts());
  }

  std::vector<MatrixFigures> run(int threads, const std::function<void()>& beside) {
    using Job = WeightCounter::Job;
    for (const Job& job : counter_->jobs()) progress_.total += counter_->bytes_of(job);
    const WeightCounter::Read read = [this](size_t tensor, uint64_t offset, std::span<uint8_t> out) {
      s_.read(tensor, offset, out);
    };
    JobQueue<Job> queue(counter_->jobs());
    queue.add({Job::kNone, Job::kNone, 0, 0});
    queue.run(
        threads,
        [&] {
          return [&, buffers = WeightCounter::Buffers()](const Job& job) mutable {
            if (job.module != Job::kNone || job.tensor != Job::kNone) {
              counter_->count(job, read, buffers, progress_);
            } else {
              beside();
            }
          };
        },
        [] {});
    // Reported last, so that `beside` does not see these findings.
    for (const auto& [tensor, hash] : counter_->hashes())
      lint_tensor_hash(s_, *manifest_, tensor, hash, sink_);
    figures_ = counter_->figures();
    for (const Nvfp4Linear& m : s_.modules) {
      if (s_.is_whole(m)) report_module(m, counter_->module(m.codes));
    }
    for (const auto& [tensor, counts] : counter_->tensors()) report_tensor(tensor, counts);
    return std::move(figures_);
  }

 private:
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
    const TensorCheck check = counter_->scan_of(tensor).check;
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
    const TensorInfo &scale = s_.tensors[tensor], &weight = s_.tensors[*counter_->scan_of(tensor).scaled];
    uint64_t zero_lines = 0, zero_columns = 0;
    for (const MatrixFigures& f : figures_) {
      if (f.tensor != *counter_->scan_of(tensor).scaled) continue;
      zero_lines += f.zero_lines;
      zero_columns += f.zero_columns;
    }
    uint64_t count = 1;
    for (const int64_t n : scale.shape) count *= static_cast<uint64_t>(n);
    const bool a_row = scale.shape.empty() || scale.shape.back() == 1;
    const bool has_zeros = a_row && count > 1 ? c.zero <= zero_lines : zero_lines + zero_columns > 0;
    // If all weights of an INT4 group were zero, its scale may be zero and its codes may be anything.
    const bool few = counter_->scan_of(tensor).scales_integers && 16 * c.zero <= count;
    if (has_zeros || few || (count == 1 && !counter_->tensors().at(*counter_->scan_of(tensor).scaled).any))
      return;
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
  std::optional<WeightCounter> counter_;
  std::vector<MatrixFigures> figures_;
};

}  // namespace

std::vector<MatrixFigures> lint_weights(const LintInput& s, int jobs, const std::function<void()>& beside,
                                        const WrittenWeights* written, LintReporter& reporter,
                                        Progress& progress) {
  return WeightLint(s, lint_manifest(s, reporter), written, reporter, progress).run(jobs, beside);
}

}  // namespace twofour
