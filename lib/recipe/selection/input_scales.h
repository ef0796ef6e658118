#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/findings/problems.h"
#include "lib/recipe/artifact/recipe.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/linears/linears.h"

namespace twofour {

/// A rule's settings for input scales, and the modules that they apply to. The proof has its own code to read
/// these settings.
struct InputScaleRule {
  struct Module {
    std::string name;  ///< each expert of a stack has its own name
    std::shared_ptr<const Linear> source;
    int64_t expert = 0;       ///< position in a stack
    bool is_written = false;  ///< by this rule, in NVFP4; otherwise the module is only a neighbour
  };
  InputScale setting = {};  ///< the value of Rule::input_scale
  Author author = Author::kPrompt;
  bool one_a_layer = false;
  bool is_needed = false;        ///< loaders of the dialect need input scales
  FixedGlobalScales given = {};  ///< amax by module, for "given"
  std::vector<Module> modules = {};
};

/// True if a rule gives input scales to modules of the source that have none.
bool adds_input_scales(const Rule& rule);
/// True if a rule requires input scales that differ from the scales of the source's NVFP4 modules.
bool changes_input_scales(const Rule& rule);

/// The input scale of a written module as a multiplier, which is amax / 2688. The multiplier is 0 if there is
/// no input scale. `is_own` is true if it is the source's input scale, unchanged.
struct ChosenInputScale {
  float multiplier = 0;
  bool is_own = false;
};

/// Chooses the input scale of each module by the settings of the rule. Gate and up of an expert or MLP, and
/// other linears that engines fuse, share the largest of their scales. Adds a problem for each scale that the
/// settings cannot provide.
std::vector<ChosenInputScale> choose_input_scales(const Checkpoint& source, const InputScaleRule& rule,
                                                  Problems& problems);

/// Reads the largest magnitudes of modules' inputs from a safetensors file, in which module M has `M.amax`
/// F32 []. Throws Error on other tensors and on numbers that are not positive and finite.
FixedGlobalScales read_amax_file(const std::string& path);

}  // namespace twofour
