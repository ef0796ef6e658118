#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "lib/methods/module_rewrite.h"
#include "lib/plan/method.h"

namespace twofour {

/// What the methods share that rewrite NVFP4 modules under their own names.

/// The dialect of that name, for modules that are not stacks. Throws Error if there is none.
const Nvfp4Dialect& dialect_named(std::string_view name);
/// Of a dialect's scalars: [] or [1].
std::vector<int64_t> scalar_shape(std::string_view dialect);
/// The global scales of a module, by the stored bits and as multipliers.
ModuleRewrite::Scales read_module_scales(const Checkpoint& source, const Nvfp4Linear& module,
                                         Problems& problems);
/// KV scales take the type that ModelOpt or compressed-tensors gives them; loaders know either's names.
void plan_kv_scales(std::string_view dialect, Planner& planner);

/// The NVFP4 modules that a selection leaves. Throws Error where none are left or a pattern matches nothing.
std::vector<size_t> chosen_modules(const Checkpoint& source, const Selection& selection);
/// All of them; throws Error where the selection leaves any out.
std::vector<size_t> all_modules(const Checkpoint& source, const Rule& rule);

/// Adds a problem for each tensor that is quantized in another way: the new configuration would be wrong
/// about it.
void refuse_other_quantization(const Checkpoint& source, const std::string& to, Problems& problems);

}  // namespace twofour
