#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "formats/json/access.h"
#include "lib/names/config_pattern.h"

/// What the rules of several engines are made of. Configurations outlive what is made from them.
namespace twofour::lookups {

/// Whether there are groups and none has activations: ModelOpt's NVFP4 of such a config is for weights alone.
bool are_for_weights_alone(const Json& groups);
/// "quant_algo" in capitals, as loaders compare it; empty where there is none.
std::string algorithm_of(const Json& entry);

/// quantized_layers: exact names, in the order of the file. A configuration of more than 256 KiB is in order
/// of names.
class LayerMap {
 public:
  explicit LayerMap(const Json& layers);
  bool empty() const { return entries_.empty(); }
  const std::vector<std::pair<std::string_view, const Json*>>& entries() const { return entries_; }
  /// The entry of a name; nullptr: none.
  const Json* find(const std::string& name) const;
  /// That of the first name below `name`.
  const Json* first_below(const std::string& name) const;
  /// That of the first name that has `text` anywhere.
  const Json* first_with(std::string_view text) const;

 private:
  struct Head {
    std::string_view name;  ///< of experts without number and matrix, since there are many
    const Json* entry;      ///< of the first
    bool cut;
  };
  std::vector<std::pair<std::string_view, const Json*>> entries_;
  std::unordered_map<std::string_view, const Json*> by_name_;
  std::vector<Head> heads_;
};

/// Names and, with "re:", expressions that match from the start, as compressed-tensors lists them.
class TargetList {
 public:
  /// Adds one behind the others, or finds its place where it is there.
  size_t add(const std::string& text);
  /// Whether all expressions can be followed; Python knows some that we do not.
  bool all_known() const { return all_known_; }
  /// The first that matches.
  std::optional<size_t> find(const std::string& name) const;
  bool matches(const std::string& name) const { return find(name).has_value(); }
  /// Whether it is listed as a name.
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
  /// What an expression said of names that are equal but for their digits.
  mutable std::unordered_map<std::string, bool> seen_;
};

/// The groups of a compressed-tensors config: targets in the order of the file, the group of each.
struct TargetGroups {
  explicit TargetGroups(const Json& config);
  TargetList targets, ignored;
  std::vector<const Json*> groups;  ///< of each target
  std::vector<const Json*> all;     ///< each once
  bool all_known() const { return targets.all_known() && ignored.all_known(); }
  /// The group that targets a class, as "Linear"; nullptr: none.
  const Json* of_class(std::string_view name) const;
  /// The group of a linear that no engine puts together with others; nullptr: none.
  const Json* find(const std::string& module) const;
};

}  // namespace twofour::lookups
