#pragma once
#include <string>
#include <vector>

#include "lib/artifact/recipe.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/findings/problems.h"

namespace twofour {

/// A module that is written in NVFP4.
struct InputScaleModule {
  std::string name;
  float existing;  ///< the source's input scale as a multiplier, amax / 2688; 0: none
};

/// The input scale of each module, as a multiplier, by the words of a rule; 0: none. Gate and up of one
/// expert or MLP get the larger of theirs, which engines use for both. What the words cannot give is a
/// problem.
std::vector<float> choose_input_scales(const Rule& rule, const std::vector<InputScaleModule>& modules,
                                       Problems& problems);

/// The input scale of an NVFP4 module as a multiplier; 0 where it has none. One that is no positive finite
/// number is a problem.
float read_input_scale(const Checkpoint& source, const Nvfp4Linear& module, Problems& problems);

/// Input scales of a safetensors file: `M.amax` F32 [] is the largest magnitude that module M's inputs have.
/// Throws Error on other tensors of that suffix and on numbers that are not positive and finite.
FixedGlobalScales read_amax_file(const std::string& path);

}  // namespace twofour
