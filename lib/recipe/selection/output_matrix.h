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

/// A run of rows of a stored module that become rows of a target. Row i of the run is row `first + i * step`
/// of the module and row `n0 + i` of the target.
struct SourceRows {
  size_t module;   ///< in Checkpoint::nvfp4_modules()
  int64_t expert;  ///< in the module's stack; 0 if it is not a stack
  int64_t first, step, count;
  int64_t n0;  ///< row of the target where the run begins
};

/// One matrix of an artifact, with all its experts. Its name is "P.w13" or "P.w2" in block P, or "P" for a
/// single linear P.
struct OutputMatrix {
  std::string block;  ///< P
  std::string name;   ///< the prefix of its parts' names
  char joint;         ///< before the part, as in "P.w13_comp", or "P.comp" for a single linear
  Shape shape;
  size_t sources_per_expert;        ///< 2 for gate and up, otherwise 1
  std::vector<SourceRows> sources;  ///< [E][sources_per_expert]
  std::string rule{};               ///< the reason for its choice: "default set" or an option
  std::string tensor_name(const char* part) const { return name + joint + part; }
};

/// The targets of a 2:4 or gate/up layout, in natural order. By default, they are the routed experts of an
/// MoE model or the MLPs of a dense model. `selection` restricts and extends this set. Throws Error with a
/// list if an expert lacks a matrix, if the numbers of experts have gaps or if shapes disagree. Also throws
/// Error on a pattern that matches nothing and on an empty set.
std::vector<OutputMatrix> select_matrices(const Checkpoint& checkpoint, const Selection& selection);

/// The kinds of unconverted experts that are worth a warning. Known experts in formats other than NVFP4
/// always are, unless they predict further tokens, because producers leave such experts as they are.
struct ExpertsLeft {
  bool nvfp4 = false;   ///< experts in NVFP4, if layouts are made
  bool drafts = false;  ///< experts that predict further tokens
  bool stacks = false;  ///< stacks of matrices under a name that is not known for experts
};

/// Adds a warning for blocks of routed experts if no rule takes any of their modules, although other modules
/// were converted. `is_taken` returns true if a rule takes a tensor.
void warn_of_experts_left(const Checkpoint& checkpoint, const std::function<bool(size_t)>& is_taken,
                          ExpertsLeft which, Findings& findings);

}  // namespace twofour
