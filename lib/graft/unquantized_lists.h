#pragma once
#include <set>
#include <string>
#include <vector>

#include "formats/json.h"

/// The modules that the entries of a quantization_config's lists name.

namespace twofour {

/// Lists of unquantized modules, in every dialect.
inline constexpr const char* kUnquantizedLists[] = {"ignore", "exclude_modules", "modules_to_not_convert",
                                                    "ignored_layers"};

/// True if a member is an array.
bool is_list(const Json& holder, const char* key);

/// Those lists that a holder of quantization settings has.
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

/// True if an entry of a list names a module: by its own name, by that of a module above it, or by the end of
/// one.
bool names_module(const std::string& entry, const std::string& module);

/// Sorted names of tensors, to look up the matches of config entries. They must outlive this.
class TensorNames {
 public:
  explicit TensorNames(const std::vector<std::string>& sorted);
  /// True if there is a tensor of that name, or below a module of that name.
  bool has(const std::string& name) const;
  /// True if an entry of a list matches any module.
  bool matched_by(const std::string& entry) const;

 private:
  template <class F>
  bool any(F&& f) const;

  const std::vector<std::string>& names_;
  std::set<std::string> tops_;
};

}  // namespace twofour
