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

/// One tensor of floats that a row of a family describes. It is a parameter or the bias of one.
struct FamilyRow {
  ParameterKind kind;
  bool is_bias = false, has_layer = false, has_expert = false;
  bool is_alias = false;  ///< true if the name is an alternative name of a parameter
  std::string name = {};  ///< "model.layers.#.mlp.gate_proj.weight"
  std::string when = {};
  std::string n = {}, k = {};  ///< sizes; k is empty for a vector
  /// The name without ".weight".
  std::string_view module() const {
    return std::string_view(name).substr(0, name.size() - (kind <= ParameterKind::kTwoPatches ? 7 : 0));
  }
  bool is_stack() const { return kind == ParameterKind::kRowStack || kind == ParameterKind::kColumnStack; }
  bool is_expert_form() const { return has_expert || is_stack() || kind == ParameterKind::kStackVector; }
};
/// Parses the text of blocks into rows. Throws Error on a line with a mistake.
std::vector<FamilyRow> family_rows(std::span<const FamilyBlock> blocks);

/// The keys that switch parameters on and off: those of the terms KEY and !KEY of conditions. They are sorted
/// by name.
std::vector<std::string> family_switches(const std::vector<FamilyRow>& rows);

/// A tensor's name in which # replaces each number between dots.
struct FoldedName {
  std::string text;
  std::array<int64_t, 2> numbers{-1, -1};  ///< the first two numbers; -1 if there is none
  void fold(std::string_view name);
};

/// Removes from a name the parts that multimodal models put before or after "model.".
std::string text_model_name(const std::string& name);

/// Finds rows by the names of tensors in files. The tensors may hold floats or codes.
class FamilyNames {
 public:
  explicit FamilyNames(const std::vector<FamilyRow>& rows);
  /// The rows for a folded name of the language model. There may be none, one, or one for each condition that
  /// gives the tensor a different size.
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

/// True if a condition contains the term.
inline bool has_term(std::string_view condition, std::string_view term) {
  bool found = false;
  for_each_term(condition, [&](std::string_view t) { found = found || t == term; });
  return found;
}

}  // namespace twofour
