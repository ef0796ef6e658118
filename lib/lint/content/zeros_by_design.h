#pragma once
#include <map>
#include <set>
#include <span>
#include <string>

#include "lib/lint/siblings/members.h"

namespace twofour {

/// Matrices of zeros that change nothing by design: experts that only pad their number and that the router
/// never chooses, and layers that add nothing to the residual stream, with which a model is expanded.
class ZerosByDesign {
 public:
  ZerosByDesign(const LintInput& input, std::span<const Member> members);
  /// True if a matrix, which must be of zeros, is by design.
  bool covers(const Member& m) const;
  /// The number of experts among a router's that only pad.
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
