#pragma once
#include <set>
#include <string>
#include <vector>

#include "formats/json.h"

/// Functions that find the modules which entries of a quantization_config's lists name.

namespace twofour {

/// The keys, in all dialects, of lists of modules that are not quantized.
inline constexpr const char* kUnquantizedLists[] = {"ignore", "exclude_modules", "modules_to_not_convert",
                                                    "ignored_layers"};

/// True if `holder` has the member `key` and this member is an array.
bool is_list(const Json& holder, const char* key);

/// Returns the lists of kUnquantizedLists that an object with quantization settings has.
template <class J>
std::vector<J*> unquantized_lists(J& holder) {
  std::vector<J*> lists;
  for (const char* key : kUnquantizedLists) {
    if (is_list(holder, key)) lists.push_back(&holder[key]);
  }
  return lists;
}

/// Returns a module's name followed by the names of the modules above it, the nearest first.
std::vector<std::string> with_ancestors(const std::string& module);

/// True if an entry of a list names a module. The entry may be the module's name, the name of a module above
/// it, or the end of one of these names.
bool names_module(const std::string& entry, const std::string& module);

/// The sorted names of a checkpoint's tensors, in which the matches of config entries are looked up. The
/// names must outlive this object.
class TensorNames {
 public:
  explicit TensorNames(const std::vector<std::string>& sorted);
  /// True if a tensor or a module with tensors has that name.
  bool has(const std::string& name) const;
  /// True if an entry of a list matches any module of these tensors.
  bool matched_by(const std::string& entry) const;

 private:
  template <class F>
  bool any(F&& f) const;

  const std::vector<std::string>& names_;
  std::set<std::string> tops_;
};

}  // namespace twofour
