#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/json/access.h"
#include "lib/base/names/config_pattern.h"

/// Building blocks for the rules by which several engines look up the quantization of a module. Each refers
/// to its configuration, which must outlive it.
namespace twofour::lookups {

/// True if there are groups and none of them quantizes activations. ModelOpt's NVFP4 of a config with such
/// groups is for weights alone.
bool are_for_weights_alone(const Json& groups);
/// The value of "quant_algo" in capitals, since loaders compare it in capitals. Empty if it is absent.
std::string algorithm_of(const Json& entry);

/// The entries of "quantized_layers", which have exact names, in the order of the file. A configuration of
/// more than 256 KiB is sorted by name.
class LayerMap {
 public:
  explicit LayerMap(const Json& layers);
  bool empty() const { return entries_.empty(); }
  const std::vector<std::pair<std::string_view, const Json*>>& entries() const { return entries_; }
  /// The entry of a name; nullptr if there is none.
  const Json* find(const std::string& name) const;
  /// The entry of the first name below `name`.
  const Json* first_below(const std::string& name) const;
  /// The entry of the first name that contains `text`.
  const Json* first_with(std::string_view text) const;

 private:
  struct Head {
    std::string_view name;  ///< for an expert, without its number and its matrix, since experts are many
    const Json* entry;      ///< the entry of the first name with this head
    bool cut;
  };
  std::vector<std::pair<std::string_view, const Json*>> entries_;
  std::unordered_map<std::string_view, const Json*> by_name_;
  std::vector<Head> heads_;
};

/// Names and regular expressions ("re:...") that match from the start, as compressed-tensors lists them.
class TargetList {
 public:
  /// Appends a text, unless it is already in the list. Returns its position.
  size_t add(const std::string& text);
  /// True if we can evaluate all expressions. Some of Python's expressions we cannot.
  bool all_known() const { return all_known_; }
  /// The position of the first text that matches the name.
  std::optional<size_t> find(const std::string& name) const;
  bool matches(const std::string& name) const { return find(name).has_value(); }
  /// True if the list has this text as a name.
  bool has_name(const std::string& name) const { return places_.count(name) > 0; }
  const std::vector<std::string>& texts() const { return texts_; }

 private:
  struct Expression {
    size_t place;
    ConfigPattern pattern;
  };
  bool matches_expression(size_t expression, const std::string& name) const;
  std::vector<std::string> texts_;
  std::unordered_map<std::string, size_t> places_;
  std::vector<Expression> expressions_;
  bool all_known_ = true;
  /// Results of expressions for names that are equal except for their digits.
  mutable std::unordered_map<std::string, bool> seen_;
};

/// The groups of a compressed-tensors config. `targets` are in the order of the file; `groups` has the group
/// of each.
struct TargetGroups {
  explicit TargetGroups(const Json& config);
  TargetList targets, ignored;
  std::vector<const Json*> groups;  ///< the group of each target, in the order of `targets`
  std::vector<const Json*> all;     ///< all groups, each once
  bool all_known() const { return targets.all_known() && ignored.all_known(); }
  /// The group that targets a class, such as "Linear"; nullptr if no group does.
  const Json* of_class(std::string_view name) const;
  /// The group of a linear that no engine fuses with others; nullptr if it has none.
  const Json* find(const std::string& module) const;
};

}  // namespace twofour::lookups
