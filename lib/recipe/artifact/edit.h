#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace twofour {

/// An edit by `graft` or `drop`. It chooses tensors from one or two checkpoints that make a new checkpoint,
/// byte for byte. The numbers and the order of experts are the source's.
struct Edit {
  enum class Kind { kNone, kGraft, kDropModules, kDropExperts };
  Kind kind = Kind::kNone;
  /// Names, globs, "re:..." or roles of the modules or tensors that come from the donor or that are dropped.
  std::vector<std::string> patterns = {};
  /// For kDropExperts, the experts that remain, in ascending order, by block ("model.layers.3.mlp.experts").
  std::map<std::string, std::vector<int64_t>> experts = {};

  explicit operator bool() const { return kind != Kind::kNone; }
  /// The command that makes the edit, "graft" or "drop". Empty without an edit.
  std::string_view name() const { return kind == Kind::kNone ? "" : kind == Kind::kGraft ? "graft" : "drop"; }
};

}  // namespace twofour
