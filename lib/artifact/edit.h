#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace twofour {

/// Which tensors of one or two checkpoints make another, byte for byte: what `graft` and `drop` do. Numbers
/// and order of experts are the source's.
struct Edit {
  enum class Kind { kNone, kGraft, kDropModules, kDropExperts };
  Kind kind = Kind::kNone;
  /// Names, globs, "re:..." or roles, of modules or tensors: those that come from the donor, or that go.
  std::vector<std::string> patterns = {};
  /// kDropExperts: the experts that stay, ascending, by block ("model.layers.3.mlp.experts").
  std::map<std::string, std::vector<int64_t>> experts = {};

  explicit operator bool() const { return kind != Kind::kNone; }
  /// The command: "graft" or "drop"; empty for none.
  std::string_view name() const { return kind == Kind::kNone ? "" : kind == Kind::kGraft ? "graft" : "drop"; }
};

}  // namespace twofour
