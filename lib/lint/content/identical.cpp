#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <string_view>

#include "formats/families/family.h"
#include "formats/json/access.h"
#include "lib/lint/content/checks.h"
#include "lib/lint/content/copied_layers.h"

namespace twofour {
namespace {

/// True for an embedding, and for a head that is tied to the embedding or copied for a draft.
bool is_shared_by_design(const std::string& name) {
  for (const char* part : {"embed", "lm_head", "shared_head", "wte", "output"}) {
    if (name.find(part) != name.npos) return true;
  }
  return false;
}

bool is_constant(const Member& m) {
  // If all numbers are equal, the RMS is equal to the amax. With block scales, the RMS may be unknown.
  const MatrixFigures& f = *m.figures;
  // For floats, the share is that of an exponent, and a router's biases may all have one exponent.
  const bool floats = width_of(f.plan.kind) > 1;
  return !std::isfinite(f.log2_rms) || std::fabs(f.log2_rms - f.log2_amax) < 1e-6 ||
         (!floats && f.constant_share > 0.99);
}

/// Reports the embedding and the head of a draft that are the model's in another order. DeepSeek-V3 shares
/// both. Source: deepseek-ai/DeepSeek-V3, README_WEIGHTS.md.
void check_shared(const LintInput& s, std::span<Member> members, LintReporter& reporter) {
  const FamilyShapes* family = find_family_shapes(text_of(s.config, "model_type"));
  if (family == nullptr || !family->shares_draft_ends) return;
  const auto find = [&](std::string_view module) -> const Member* {
    const auto at = std::ranges::find(members, module, &Member::module);
    return at == members.end() ? nullptr : &*at;
  };
  for (const Member& m : members) {
    if (m.module.find("layers.") == m.module.npos) continue;
    const bool is_head = m.module.ends_with(".shared_head.head");
    if (!is_head && !m.module.ends_with(".embed_tokens")) continue;
    const Member* own = find(is_head ? "lm_head" : "model.embed_tokens");
    if (own == nullptr || own->figures->ordered == m.figures->ordered ||
        own->figures->unordered != m.figures->unordered)
      continue;
    const TensorInfo &a = s.tensors[own->figures->tensor], &b = s.tensors[m.figures->tensor];
    if (a.dtype != b.dtype || a.shape != b.shape) continue;
    reporter.add("head-differs", s.at(m.figures->tensor, m.name),
                 "expected the bytes of {}, which the draft shares, found its rows in another order",
                 own->name);
  }
}

}  // namespace

void lint_identical(const LintInput& s, std::span<Member> members, LintReporter& reporter) {
  check_shared(s, members, reporter);
  constexpr uint64_t kLeastOfRouter = 16;
  constexpr uint64_t kLeastBytes = 64;  // smaller matrices may be equal by chance or by design
  struct Key {
    uint64_t hash, bytes;
    auto operator<=>(const Key&) const = default;
  };
  std::map<Key, std::vector<const Member*>> equal;
  for (const Member& m : members) {
    const MatrixFigures& f = *m.figures;
    const uint64_t bytes = f.plan.lines * f.plan.line_bytes;
    const uint64_t least = std::min<uint64_t>(bytes, s.tensors[f.tensor].bytes());
    const bool vector =
        s.tensors[f.tensor].shape.size() == 1 && m.at.layer >= 0 && m.name.find("inv_freq") == m.name.npos;
    // A router's biases are floats that training moved, if only four.
    const bool router = vector && m.name.find("gate.") != m.name.npos && m.name.ends_with("bias");
    if ((!m.is_linear && !vector) || is_constant(m) || least < (router ? kLeastOfRouter : kLeastBytes) ||
        is_shared_by_design(m.name))
      continue;
    equal[{f.ordered, bytes}].push_back(&m);
  }
  std::vector<const Member*> compared;
  for (const auto& [key, same] : equal) compared.insert(compared.end(), same.begin(), same.end());
  const CopiedLayers copies(compared);
  for (const auto& [key, same] : equal) {
    for (size_t i = 1; i < same.size(); ++i) {
      const Member& m = *same[i];
      if (copies.is_copy(m, *same[0])) continue;
      reporter.add("identical-weights", s.at(m.figures->tensor, m.name),
                   "expected other weights, found those of {}", same[0]->name);
    }
  }
  // Codes of NVFP4 that were copied, though their block scales were not.
  std::map<Key, std::vector<const Member*>> codes;
  for (const auto& [key, same] : equal) {
    const MatrixFigures& f = *same[0]->figures;
    if (f.plan.scale_bytes > 0) codes[{f.codes, key.bytes}].push_back(same[0]);
  }
  for (const auto& [key, same] : codes) {
    for (size_t i = 1; i < same.size(); ++i) {
      const Member& m = *same[i];
      reporter.add("identical-weights", s.at(m.figures->tensor, m.name),
                   "expected other codes, found those of {} under other block scales", same[0]->name);
    }
  }
  // Matrices with the same lines in another order: one is a row permutation of its sibling.
  std::map<Key, std::vector<const Member*>> permuted;
  for (const auto& [key, same] : equal) permuted[{same[0]->figures->unordered, key.bytes}].push_back(same[0]);
  for (const auto& [key, same] : permuted) {
    for (size_t i = 1; i < same.size(); ++i) {
      const Member& m = *same[i];
      reporter.add("identical-weights", s.at(m.figures->tensor, m.name),
                   "expected other weights, found the rows of {} in another order", same[0]->name);
    }
  }
}

}  // namespace twofour
