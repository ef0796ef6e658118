#pragma once
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace twofour {

/// The settings of `repair`. They and the sources decide every mend.
struct RepairSettings {
  std::set<std::string> only = {};  ///< lint rules whose findings are mended; empty: all rules
  bool folds = false;               ///< unequal global scales of fused linears become the larger one
  /// "neighbours", "constant=X", or "given" for the numbers of `amax`.
  std::string input_scale = "neighbours";
  /// For "given", the float32 bits of the largest magnitude of a module's inputs, by module.
  std::map<std::string, uint32_t> amax = {};
};

/// An edit by `graft`, `drop` or `repair`. It chooses tensors from one or two checkpoints that make a new
/// checkpoint, byte for byte. The numbers and the order of experts are the source's.
struct Edit {
  enum class Kind { kNone, kGraft, kDropModules, kDropExperts, kRepair };
  Kind kind = Kind::kNone;
  /// Names, globs, "re:..." or roles of the modules or tensors that come from the donor or that are dropped.
  std::vector<std::string> patterns = {};
  /// For kDropExperts, the experts that remain, in ascending order, by block ("model.layers.3.mlp.experts").
  std::map<std::string, std::vector<int64_t>> experts = {};

  RepairSettings repair = {};  ///< for kRepair

  explicit operator bool() const { return kind != Kind::kNone; }
  /// The command that makes the edit: "graft", "drop" or "repair". Empty without an edit.
  std::string_view name() const {
    if (kind == Kind::kNone) return "";
    return kind == Kind::kGraft ? "graft" : kind == Kind::kRepair ? "repair" : "drop";
  }
};

}  // namespace twofour
