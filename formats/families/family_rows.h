#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/families/family.h"

namespace twofour {

/// One tensor of floats that a family's row describes: a parameter or its bias.
struct FamilyRow {
  ParameterKind kind;
  bool is_bias = false, has_layer = false, has_expert = false;
  bool is_alias = false;  ///< another name for a parameter
  std::string name = {};  ///< "model.layers.#.mlp.gate_proj.weight"
  std::string when = {};
  std::string n = {}, k = {};  ///< sizes; a vector has no k
  /// The name without .weight.
  std::string_view module() const {
    return std::string_view(name).substr(0, name.size() - (kind <= ParameterKind::kTwoPatches ? 7 : 0));
  }
  bool is_stack() const { return kind == ParameterKind::kRowStack || kind == ParameterKind::kColumnStack; }
  bool is_expert_form() const { return has_expert || is_stack() || kind == ParameterKind::kStackVector; }
};
/// Reads the rows of blocks. Throws Error on a line with a mistake.
std::vector<FamilyRow> family_rows(std::span<const FamilyBlock> blocks);

/// The keys that switch parameters on and off, from terms KEY and !KEY of conditions, sorted by name.
std::vector<std::string> family_switches(const std::vector<FamilyRow>& rows);

/// A tensor's name with # for each number between dots.
struct FoldedName {
  std::string text;
  std::array<int64_t, 2> numbers{-1, -1};  ///< the first two; -1: there is none
  void fold(std::string_view name);
};

/// A name without the parts that multimodal models put before or behind "model.".
std::string text_model_name(const std::string& name);

/// Finds rows by the names of tensors in files, floats or codes.
class FamilyNames {
 public:
  explicit FamilyNames(const std::vector<FamilyRow>& rows);
  /// The rows of a folded name of the language model: none, one, or one for each condition that gives it a
  /// size of its own.
  std::span<const size_t> find(const std::string& folded) const;

 private:
  std::unordered_map<std::string, std::vector<size_t>> by_name_;
};

/// Calls `f` for each term of a condition.
template <class F>
void for_each_term(std::string_view condition, F&& f) {
  while (!condition.empty()) {
    const size_t end = condition.find_first_of(" \n");
    if (end != 0) f(condition.substr(0, end));
    condition = end == condition.npos ? std::string_view() : condition.substr(end + 1);
  }
}

/// True if a condition has the term.
inline bool has_term(std::string_view condition, std::string_view term) {
  bool found = false;
  for_each_term(condition, [&](std::string_view t) { found = found || t == term; });
  return found;
}

}  // namespace twofour
