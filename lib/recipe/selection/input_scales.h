#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "lib/base/findings/problems.h"
#include "lib/recipe/artifact/recipe.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/checkpoint/linears.h"

namespace twofour {

/// A rule's settings for input scales and the modules that they apply to. The proof reads them by code of its
/// own.
struct InputScaleRule {
  struct Module {
    std::string name;  ///< an expert of a stack has a name of its own
    std::shared_ptr<const Linear> source;
    int64_t expert = 0;       ///< of a stack
    bool is_written = false;  ///< the rule writes it in NVFP4; else it is only a neighbour
  };
  InputScale words = {};  ///< as Rule::input_scale
  Author author = Author::kPrompt;
  bool one_a_layer = false;
  bool is_needed = false;        ///< loaders of the dialect need input scales
  FixedGlobalScales given = {};  ///< with "given": amax
  std::vector<Module> modules = {};
};

/// True if a rule gives input scales to modules of the source that have none.
bool adds_input_scales(const Rule& rule);
/// True if a rule requires other input scales than those of the source's NVFP4 modules.
bool changes_input_scales(const Rule& rule);

/// The input scale of a written module, as a multiplier (amax / 2688); 0: none. `is_own`: the source's,
/// unchanged.
struct ChosenInputScale {
  float multiplier = 0;
  bool is_own = false;
};

/// The input scale of each module, by the settings of the rule. Gate and up of one expert or MLP, and other
/// linears that engines fuse, get the largest of their scales. A scale that the settings cannot provide is a
/// problem.
std::vector<ChosenInputScale> choose_input_scales(const Checkpoint& source, const InputScaleRule& rule,
                                                  Problems& problems);

/// Largest magnitudes from a safetensors file: `M.amax` F32 [] is that of module M's inputs. Throws Error on
/// other tensors and on numbers that are not positive and finite.
FixedGlobalScales read_amax_file(const std::string& path);

}  // namespace twofour
