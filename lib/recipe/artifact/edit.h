#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace twofour {

/// The tensors of one or two checkpoints that make another, byte for byte: for `graft` and `drop`. Numbers
/// and order of experts are the source's.
struct Edit {
  enum class Kind { kNone, kGraft, kDropModules, kDropExperts };
  Kind kind = Kind::kNone;
  /// Names, globs, "re:..." or roles, of modules or tensors that come from the donor, or that are dropped.
  std::vector<std::string> patterns = {};
  /// kDropExperts: the remaining experts, ascending, by block ("model.layers.3.mlp.experts").
  std::map<std::string, std::vector<int64_t>> experts = {};

  explicit operator bool() const { return kind != Kind::kNone; }
  /// The command: "graft" or "drop"; empty for none.
  std::string_view name() const { return kind == Kind::kNone ? "" : kind == Kind::kGraft ? "graft" : "drop"; }
};

}  // namespace twofour
