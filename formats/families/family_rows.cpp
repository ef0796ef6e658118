#include "formats/families/family_rows.h"

#include <algorithm>
#include <set>

#include "formats/families/sizes.h"

namespace twofour {

namespace {

/// Without the term `alias`, which no message shows.
std::string without_alias(std::string_view when) {
  std::string rest;
  for_each_term(when, [&](std::string_view term) {
    if (term == "alias") return;
    if (!rest.empty()) rest += ' ';
    rest += term;
  });
  return rest;
}

/// Whether a number behind `path` counts experts, heads or parts, and not blocks of a layer.
bool counts_experts(std::string_view path) {
  return path.ends_with("experts.") || path.ends_with("norms.") || path.ends_with("_");
}

}  // namespace

std::vector<FamilyRow> family_rows(std::span<const FamilyParameter> parameters) {
  using Kind = ParameterKind;
  std::vector<FamilyRow> rows;
  for (const FamilyParameter& p : parameters) {
    FamilyRow row{.kind = p.kind, .name = p.name, .when = without_alias(p.when), .n = p.n, .k = p.k};
    row.is_alias = has_term(p.when, "alias");
    const size_t layer = row.name.find('#');
    row.has_layer = layer != row.name.npos;
    const size_t second = row.has_layer ? row.name.find('#', layer + 1) : row.name.npos;
    row.has_expert = second != row.name.npos && counts_experts(std::string_view(row.name).substr(0, second));
    const std::string module = row.name;
    if (p.kind <= Kind::kTwoPatches) row.name += ".weight";
    rows.push_back(row);
    if (p.bias == nullptr) continue;
    row.is_bias = true;
    row.kind = Kind::kVector;
    row.name = module + ".bias";
    row.k = "";
    if (*p.bias != '\0') {
      if (row.when == "may") row.when.clear();  // what says that there is a bias says that there is a weight
      if (!row.when.empty()) row.when += ' ';
      row.when += p.bias;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<FamilyRow> family_rows(const FamilyShapes& family) {
  std::vector<FamilyRow> rows;
  for (const auto parameters : family.parameters) {
    for (FamilyRow& row : family_rows(parameters)) rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<std::string> family_switches(const std::vector<FamilyRow>& rows) {
  std::set<std::string> keys;
  for (const FamilyRow& row : rows) {
    for_each_term(row.when, [&](std::string_view term) {
      if (term.starts_with('!')) term = term.substr(1);
      if (!term.starts_with('@') && term != "may" && term.find_first_of("=:") == term.npos)
        keys.emplace(term);
    });
  }
  return {keys.begin(), keys.end()};
}

void FoldedName::fold(std::string_view name) {
  text.clear();
  numbers = {-1, -1};
  size_t count = 0;
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('.', at), name.size());
    const std::string_view part = name.substr(at, end - at);
    const bool digits = !part.empty() && part.size() < 10 &&
                        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (at > 0) text += '.';
    if (digits) {
      if (count < numbers.size()) {
        int64_t value = 0;
        for (const char c : part) value = 10 * value + (c - '0');
        numbers[count++] = value;
      }
      text += '#';
    } else {
      text += part;
    }
    at = end + 1;
  }
}

std::string text_model_name(const std::string& name) {
  constexpr std::string_view kText = "language_model.";
  const size_t at = name.find(kText);
  if (at != 0 && (at == name.npos || name[at - 1] != '.')) return name;
  return name.substr(0, at) + name.substr(at + kText.size());
}

FamilyNames::FamilyNames(const std::vector<FamilyRow>& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const FamilyRow& row = rows[i];
    const auto add = [&](std::string name) { by_name_[std::move(name)].push_back(i); };
    add(row.name);
    if (row.is_stack()) add(row.name + "_blocks");
    if (row.kind > ParameterKind::kEmbedding) continue;
    const std::string module = row.name.substr(0, row.name.rfind('.'));
    add(module + ".weight_packed");
    add(module + ".qweight");
  }
}

std::span<const size_t> FamilyNames::find(const std::string& folded) const {
  constexpr std::string_view kModel = "model.";
  const std::string with = std::string(kModel).append(folded),
                    without = folded.starts_with(kModel) ? folded.substr(kModel.size()) : folded;
  for (const std::string* tried : {&folded, &with, &without}) {
    if (const auto at = by_name_.find(*tried); at != by_name_.end()) return at->second;
  }
  return {};
}

}  // namespace twofour
