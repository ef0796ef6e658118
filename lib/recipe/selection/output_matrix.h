#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "formats/layouts/layout.h"
#include "formats/naming.h"
#include "lib/recipe/artifact/recipe.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// Rows of a stored module that form rows of a target: row i is row `first + i * step` of the module.
struct SourceRows {
  size_t module;   ///< in Checkpoint::nvfp4_modules()
  int64_t expert;  ///< in the module's stack; 0 if it is no stack
  int64_t first, step, count;
  int64_t n0;  ///< row of the target where they begin
};

/// One matrix of an artifact, with all its experts: "P.w13", "P.w2" or, of a single linear, "P".
struct OutputMatrix {
  std::string block;  ///< P
  std::string name;   ///< the prefix of its parts' names
  char joint;         ///< between name and part: "P.w13_comp", but "P.comp" of a single linear
  Shape shape;
  size_t sources_per_expert;        ///< 2 for gate and up, else 1
  std::vector<SourceRows> sources;  ///< [E][sources_per_expert]
  std::string rule{};               ///< reason for its conversion: "default set" or the option that added it
  std::string tensor_name(const char* part) const { return name + joint + part; }
};

/// The targets of a 2:4 or gate/up layout, in natural order: the routed experts of an MoE model, the MLPs of
/// a dense one, as restricted and extended by `selection`. Throws Error, with a list, if an expert lacks a
/// matrix, experts are missing from the sequence or shapes disagree; on patterns that match nothing; on an
/// empty set.
std::vector<OutputMatrix> select_matrices(const Checkpoint& checkpoint, const Selection& selection);

/// Adds a warning if blocks among `targets` have more experts than config.json states; fewer are an Error
/// above.
void warn_of_extra_experts(const Checkpoint& checkpoint, const std::vector<OutputMatrix>& targets,
                           Findings& findings);

/// The remaining experts that deserve a warning. Known experts in other formats than NVFP4 always do, unless
/// they predict further tokens: producers leave these as they are.
struct ExpertsLeft {
  bool nvfp4 = false;   ///< experts in NVFP4, if layouts are made
  bool drafts = false;  ///< experts that predict further tokens
  bool stacks = false;  ///< stacks of matrices under a name that is not known for experts
};

/// Adds a warning if no rule takes anything of a block of routed experts while other modules were converted.
void warn_of_experts_left(const Checkpoint& checkpoint, const std::function<bool(size_t)>& is_taken,
                          ExpertsLeft which, Findings& findings);

}  // namespace twofour
