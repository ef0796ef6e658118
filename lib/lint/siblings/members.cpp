#include "lib/lint/siblings/members.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "formats/weight_dialect.h"
#include "lib/lint/bytes/checks.h"
#include "lib/lint/siblings/zero_partners.h"

namespace twofour {
namespace {

/// The figures of scales of weights that are not NVFP4, by tensor and expert.
class ScaleFigures {
 public:
  explicit ScaleFigures(std::span<const MatrixFigures> figures) {
    for (const MatrixFigures& f : figures) by_place_[{f.tensor, f.expert}] = &f;
  }
  /// Returns the figures of one matrix's scales. In a stack, scales may be for each expert or for all.
  /// nullptr: no scales are known.
  const MatrixFigures* find(size_t tensor, int64_t expert) const {
    for (const int64_t e : {expert, int64_t{-1}}) {
      const auto at = by_place_.find({tensor, e});
      if (at != by_place_.end()) return at->second->plan.kind == NumberKind::kUnknown ? nullptr : at->second;
    }
    return nullptr;
  }

 private:
  std::map<std::pair<size_t, int64_t>, const MatrixFigures*> by_place_;
};

std::string without_weight(const std::string& name) {
  for (const std::string_view suffix : {".weight_packed", ".qweight", ".weight", "_blocks"}) {
    if (name.ends_with(suffix)) return name.substr(0, name.size() - suffix.size());
  }
  return name;
}

uint64_t numbers_of(const MatrixFigures& f) {
  const uint64_t bytes = f.plan.lines * f.plan.line_bytes;
  switch (f.plan.kind) {
    case NumberKind::kE2m1:
    case NumberKind::kInt4:
      return 2 * bytes;
    case NumberKind::kE2m3:
      return bytes / 3 * 4;
    case NumberKind::kBf16:
    case NumberKind::kF16:
      return bytes / 2;
    case NumberKind::kF32:
      return bytes / 4;
    default:
      return bytes;
  }
}

bool is_scale_name(std::string_view name) {
  return name.ends_with("scale") || name.ends_with("scales") || name.ends_with("scale_inv") ||
         name.ends_with("scale_2") || name.ends_with("zero_point") || name.ends_with("zeros");
}

}  // namespace

std::vector<Member> list_members(const LintInput& s, std::span<const MatrixFigures> figures) {
  const ScaleFigures scales(figures);
  std::vector<Member> members;
  for (const MatrixFigures& f : figures) {
    const TensorInfo& t = s.tensors[f.tensor];
    Member m;
    m.figures = &f;
    const auto expert = static_cast<size_t>(std::max<int64_t>(f.expert, 0));
    m.numbers = numbers_of(f);
    double scale = 0;
    if (f.module != MatrixFigures::kNone) {
      const Nvfp4Linear& module = s.modules[f.module];
      m.name = module.name;
      m.is_linear = true;
      const std::vector<float> global = read_scales(s, module.global_scale);
      const size_t at = global.size() == 1 ? 0 : expert;
      const double g = at < global.size() ? global_scale_multiplier(*module.dialect, global[at]) : 0;
      scale = g > 0 && std::isfinite(g) ? std::log2(g) : std::nan("");
      m.scale = module.global_scale;
    } else {
      if (is_scale_name(t.name) || f.plan.kind == NumberKind::kUnknown || f.plan.kind == NumberKind::kE8m0)
        continue;
      m.name = without_weight(t.name);
      m.is_linear = t.shape.size() >= 2 && f.plan.is_rows && t.name.find("bias") == t.name.npos &&
                    is_linear_name(m.name) && !is_table_name(m.name) && !m.name.ends_with("A_log");
      const ValueFormat format = value_format(s, f.tensor);
      if (format.scale) {
        m.scale = *format.scale;
        m.scale_figures = scales.find(m.scale, f.expert);
        scale = m.scale_figures != nullptr ? m.scale_figures->log2_mean : std::nan("");
      }
      const bool codes = f.plan.kind == NumberKind::kE4m3 || f.plan.kind == NumberKind::kE2m1;
      if (!format.scale && codes) scale = std::nan("");
    }
    m.module = m.name;
    m.at = sibling_name(m.name);
    if (t.name.ends_with("_blocks")) m.name = t.name;  // the name has no part for the tensor
    if (f.expert >= 0) {
      m.at.expert = f.expert;
      m.name += fmt::format(" (expert {})", f.expert);
    }
    m.log2_scale = scale;
    // Pruning leaves the other weights as large as they were.
    constexpr double kPruned = 0.5;
    const double pruned = m.is_linear && f.zero_share > kPruned ? std::log2(1 - f.zero_share) / 2 : 0;
    m.log2_rms = f.log2_rms - (std::isfinite(pruned) ? pruned : 0) + scale;
    // Blocks of zeros may have any scale, so the mean of scales means nothing.
    constexpr double kMostZeros = 0.3, kWide = 1.5;
    if (m.is_linear && m.scale_figures != nullptr && m.scale_figures->plan.kind != NumberKind::kE8m0 &&
        f.zero_share > kMostZeros && m.scale_figures->log2_amax - m.scale_figures->log2_mean > kWide)
      m.log2_rms = std::nan("");
    m.log2_amax = f.log2_amax + scale;
    members.push_back(std::move(m));
  }
  find_zero_partners(members);
  return members;
}

bool Reported::covers(const std::string& name) const {
  if (names_.empty()) return false;
  for (size_t end = name.size(); end != name.npos && end > 0; end = name.rfind('.', end - 1)) {
    if (names_.count(name.substr(0, end))) return true;
  }
  for (const char behind : {'.', ' ', '_'}) {
    const std::string prefix = name + behind;
    const auto at = names_.lower_bound(prefix);
    if (at != names_.end() && at->starts_with(prefix)) return true;
  }
  return false;
}

void drop_reported(const LintReporter& reporter, std::vector<Member>& members) {
  const Reported reported(reporter);
  std::erase_if(members, [&](const Member& m) {
    return m.reported || reported.covers(m.module) || reported.covers(m.name);
  });
}

}  // namespace twofour
