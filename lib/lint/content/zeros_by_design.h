#pragma once
#include <map>
#include <set>
#include <span>
#include <string>

#include "lib/lint/siblings/members.h"

namespace twofour {

/// Matrices of zeros by design. Experts of zeros fill up the number of experts, and the router never chooses
/// them. Layers of zeros expand a model, and add nothing to the residual stream.
class ZerosByDesign {
 public:
  ZerosByDesign(const LintInput& input, std::span<const Member> members);
  /// True if the zeros of a matrix, which has no other numbers, are by design.
  bool covers(const Member& m) const;
  /// The number of a router's experts that only fill up their number.
  uint64_t padding_rows(const Member& router) const;

 private:
  void find_padding(const LintInput& input, std::span<const Member> members);
  void find_added_layers(std::span<const Member> members);

  std::map<std::string, std::set<int64_t>> padding_;  ///< numbers of experts, by the module that holds them
  std::set<std::string> added_;                       ///< layers, as "model.layers.7"
};

/// The part of a name up to the number of its layer, "model.layers.7". Empty: it has none.
std::string layer_name_of(const Member& m);
/// True if the last part of a name is that of a linear which adds to the residual stream.
bool writes_residual(const std::string& module);

}  // namespace twofour
