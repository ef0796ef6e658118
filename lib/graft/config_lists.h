#pragma once
#include <set>
#include <string>
#include <vector>

#include "formats/json.h"

/// What the entries of a quantization_config's lists of modules name.

namespace twofour {

/// Lists of modules that are not quantized, in every dialect.
inline constexpr const char* kUnquantizedLists[] = {"ignore", "exclude_modules", "modules_to_not_convert",
                                                    "ignored_layers"};

/// Whether a member is an array.
bool is_list(const Json& holder, const char* key);

/// Those lists of a holder of words that are there.
template <class J>
std::vector<J*> unquantized_lists(J& holder) {
  std::vector<J*> lists;
  for (const char* key : kUnquantizedLists) {
    if (is_list(holder, key)) lists.push_back(&holder[key]);
  }
  return lists;
}

/// A module and the modules above it, the nearest first.
std::vector<std::string> with_ancestors(const std::string& module);

/// Whether a name of a list takes a module: its own, that of a module above it, or the end of one.
bool names_module(const std::string& entry, const std::string& module);

/// Sorted names of tensors, asked for what config entries match. They must outlive it.
class TensorNames {
 public:
  explicit TensorNames(const std::vector<std::string>& sorted);
  /// Whether there is a tensor of that name, or below a module of that name.
  bool has(const std::string& name) const;
  /// Whether an entry of a list matches any module.
  bool matched_by(const std::string& entry) const;

 private:
  template <class F>
  bool any(F&& f) const;

  const std::vector<std::string>& names_;
  std::set<std::string> tops_;
};

}  // namespace twofour
