#include "lib/lint/family/family_presence.h"

#include <fmt/format.h>

#include <algorithm>

namespace twofour {
namespace {

/// Returns the form of a row if its tensors can be stored in several forms. Experts may be in stacks, or
/// single under one of two sets of names. "either ..." stands for a tensor that has one of two names. Empty:
/// the row has one form.
std::string form_of(const FamilyRow& row) {
  if (row.kind == ParameterKind::kRouter) return "either " + std::string(row.n);
  if (row.kind == ParameterKind::kEmbedding && !row.has_layer) return "either embedding";
  if (row.name.ends_with(".attn.norm.weight") || row.name.ends_with(".kv_norm.weight")) return "either norm";
  if (row.name.starts_with("hc_head")) return "either " + row.name.substr(row.name.rfind('_'));
  if (row.name.ends_with("e_score_correction_bias")) return "either bias";
  // Norms of single heads have one form.
  if (!row.is_expert_form() || row.kind == ParameterKind::kNorm) return {};
  if (!row.has_expert) return "stacks";
  const std::string path = row.name.substr(0, row.name.rfind('#'));
  return path + (row.name[path.size() + 2] == 'w' ? "w" : "proj");
}

}  // namespace

FamilyPresence::FamilyPresence(FamilyTensors tensors, const LanguageModel& model) : all_(std::move(tensors)) {
  for (const FamilyRow& row : all_.rows) forms_.push_back(form_of(row));
  counts_.resize(all_.rows.size());
  firsts_.resize(all_.rows.size());
  for (const FamilyTensor& t : all_.tensors) {
    const auto row = static_cast<size_t>(t.row);
    if (++counts_[row][t.layer] == 1) firsts_[row].emplace(t.layer, t.tensor);
  }
  has_own_names_ = !model.family->is_open ||
                   std::any_of(all_.tensors.begin(), all_.tensors.end(), [&](const FamilyTensor& t) {
                     return row_of(t).has_layer && !row_of(t).has_expert;
                   });
}

std::vector<int64_t> FamilyPresence::layers_of(const FamilyRow& row) const {
  if (!row.has_layer) return {-1};
  return all_.layers;
}

size_t FamilyPresence::count(size_t row, int64_t layer) const {
  const auto at = counts_[row].find(layer);
  return at == counts_[row].end() ? 0 : at->second;
}

bool FamilyPresence::is_replaced(size_t row, int64_t layer) const {
  const std::string& form = forms_[row];
  const bool is_either = form.starts_with("either ");
  if (form.empty() || count(row, layer) > 0) return false;
  std::string first;  // the form that is usual in files of the family
  for (size_t i = 0; i < all_.rows.size(); ++i) {
    const std::string& other = forms_[i];
    if (other.empty() || (other.starts_with("either ") || is_either) != (other == form)) continue;
    if (first.empty() && !has_term(all_.rows[i].when, "may")) first = other;
    if (i == row || count(i, layer) == 0) continue;
    if (is_either || other != form) return !any_in(form, row, layer);
  }
  return !is_either && !any_in(form, row, layer) && form != first;
}
bool FamilyPresence::is_second_name(size_t row) const {
  const auto end = forms_.begin() + static_cast<std::ptrdiff_t>(row);
  return forms_[row].starts_with("either ") && std::find(forms_.begin(), end, forms_[row]) != end;
}
/// True if a layer has a tensor in a form. For "either ...", each row is a form of its own.
bool FamilyPresence::any_in(const std::string& form, size_t row, int64_t layer) const {
  if (form.starts_with("either ")) return count(row, layer) > 0;
  for (size_t i = 0; i < all_.rows.size(); ++i) {
    if (forms_[i] == form && count(i, layer) > 0) return true;
  }
  return false;
}

std::string FamilyPresence::name_in_layer(const FamilyRow& row, int64_t layer) const {
  std::string name = row.name;
  if (const size_t at = name.find('#'); at != name.npos && layer >= 0)
    name.replace(at, 1, fmt::format("{}", layer - all_.offset));
  return name;
}

}  // namespace twofour
