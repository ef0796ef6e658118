#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <tuple>

#include "lib/lint/bytes/checks.h"
#include "lib/lint/siblings/checks.h"
#include "lib/lint/siblings/untrained.h"

namespace twofour {
namespace {

/// Lower limits of a matrix's largest number. For NVFP4, the largest code * block scale is near 2688, near
/// 1536 with four-over-six, or near 448 if activations are FP8. For FP8, the largest number is 448, or above
/// 224 if scales are powers of two.
constexpr double kLeastNvfp4 = 400, kLeastE4m3 = 200;
constexpr uint64_t kFewToFill = 4096;
/// How many times larger than needed the scales of most matrices may be.
constexpr double kMostLarger = 16;
/// The largest difference in octaves between the RMS of a matrix and that of others of its kind. Up to it, a
/// matrix only divides its magnitude among its scales in another way.
constexpr double kInLine = 0.9;

/// Matrices that have one scale in common. Producers share scales within a block of experts or a fused
/// linear. So only the largest weight of all these matrices must come near full scale.
struct Shared {
  double amax = 0;
  const Member* first = nullptr;
};

class FullScale {
 public:
  FullScale(const LintInput& s, std::span<Member> members, LintReporter& reporter) : s_(s), sink_(reporter) {
    for (Member& m : members) {
      if (m.is_linear && std::isfinite(m.log2_rms)) kinds_[m.at.kind].push_back(m.log2_rms);
      if (m.is_linear && std::isfinite(m.log2_rms) && m.at.expert >= 0)
        experts_[{m.at.kind, m.at.layer}].push_back(&m);
      if (m.is_linear && std::isfinite(m.figures->log2_amax)) add(m);
      const bool has_blocks = m.is_linear && is_nvfp4(m) && m.figures->plan.scale_bytes > 0;
      if (has_blocks && m.figures->counted >= kFewToFill && m.figures->zero_share < 0.4) coded_.push_back(&m);
    }
  }

  void run() {
    check_blocks();
    std::vector<const Shared*> low;
    for (const auto& [key, shared] : shared_) {
      const bool is_e2m1 = !is_nvfp4(*shared.first) && (shared.amax == 6 || shared.amax == 4);
      if (is_e2m1) continue;  // four-bit codes that are stored as FP8, with their block scales
      if (shared.amax < (is_nvfp4(*shared.first) ? kLeastNvfp4 : kLeastE4m3)) low.push_back(&shared);
    }
    const bool few = 4 * low.size() <= shared_.size();
    for (const Shared* one : low) {
      const Member& m = *one->first;
      // A scale that is larger than needed only costs precision.
      const bool is_larger = one->amax * kMostLarger >= (is_nvfp4(m) ? kLeastNvfp4 : kLeastE4m3);
      if (few ? is_in_line(m) || is_untrained(m) : is_larger) continue;
      sink_.add("amax-mismatch", s_.at(m.scale),
                is_nvfp4(m)
                    ? fmt::format("expected a largest code * block scale near 2688, 1536 or 448, found {:g}",
                                  one->amax)
                    : fmt::format("expected a largest number near 448, found {:g}", one->amax));
    }
  }

 private:
  /// Checks that blocks have a code of 6. If a scale is made from the largest number of its block, the code
  /// of that number is 6. It is not if codes and scales of a matrix do not belong together.
  void check_blocks() {
    constexpr double kAll = 0.985, kFew = 0.93;
    constexpr size_t kFewestMatrices = 6;
    const auto full = static_cast<size_t>(
        std::ranges::count_if(coded_, [](const Member* m) { return m->figures->full_blocks > kAll; }));
    if (coded_.size() < kFewestMatrices || 4 * full < 3 * coded_.size()) return;
    for (const Member* m : coded_) {
      if (m->figures->full_blocks > kFew) continue;
      sink_.add("odd-codes", s_.at(m->figures->tensor, m->name),
                "expected a code of 6 in nearly every block (as in {} of {} matrices), found one in {:.0f} "
                "%: codes and scales that do not belong together",
                full, coded_.size(), 100 * m->figures->full_blocks);
    }
  }

  static bool is_nvfp4(const Member& m) { return m.figures->module != MatrixFigures::kNone; }

  void add(const Member& m) {
    if (m.scale == MatrixFigures::kNone) return;
    const bool fp8 = m.figures->plan.kind == NumberKind::kE4m3;
    // A scale of 1 means plain FP8.
    if (!is_nvfp4(m) && (!fp8 || m.numbers < kFewToFill || m.log2_scale == 0)) return;
    if (is_nvfp4(m) && m.figures->scale_mean < -6) return;  // another rule reports subnormal block scales
    const size_t experts = m.name.find("experts.");
    const std::string block(experts != m.name.npos ? std::string_view(m.name).substr(0, experts)
                                                   : module_of(m.name));
    Shared& shared = shared_[{block, fp8, m.log2_scale}];
    if (shared.first == nullptr) shared.first = &m;
    shared.amax = std::max(shared.amax, std::exp2(m.figures->log2_amax));
  }

  /// True if the weights are as large as others of the kind. Then only the division among the scales differs.
  bool is_in_line(const Member& m) const {
    const std::vector<double>& all = kinds_.at(m.at.kind);
    constexpr size_t kFewestAlike = 4;
    return all.size() >= kFewestAlike && std::fabs(m.log2_rms - robust_spread(all).median) < kInLine;
  }

  /// True for an expert that was never trained, and is small under a scale that others need.
  bool is_untrained(const Member& m) const {
    const auto group = experts_.find({m.at.kind, m.at.layer});
    constexpr size_t kFewestExperts = 4;
    return group != experts_.end() && group->second.size() >= kFewestExperts &&
           is_never_drawn(m, group->second, robust_spread(kinds_.at(m.at.kind)).median);
  }

  const LintInput& s_;
  LintReporter& sink_;
  std::map<std::string, std::vector<double>> kinds_;
  std::map<std::pair<std::string, int64_t>, Group> experts_;
  std::vector<const Member*> coded_;  ///< matrices in E2M1 with block scales that are not pruned
  std::map<std::tuple<std::string, bool, double>, Shared> shared_;
};

}  // namespace

void lint_full_scale(const LintInput& s, std::span<Member> members, LintReporter& reporter) {
  FullScale(s, members, reporter).run();
}

}  // namespace twofour
