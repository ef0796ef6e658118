#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "lib/dialects/output_dialect.h"
#include "lib/methods/module_rewrite.h"
#include "lib/plan/method.h"

namespace twofour {

/// What the methods share that rewrite NVFP4 modules under their own names.

/// The global scales of a module, by the stored bits and as multipliers.
ModuleRewrite::Scales read_module_scales(const Checkpoint& source, const Nvfp4Linear& module,
                                         Problems& problems);
/// KV scales take the type that the dialect gives them, if it has any; loaders know either's names.
void plan_kv_scales(const OutputDialect& dialect, Planner& planner);

/// The NVFP4 modules that a selection leaves. Throws Error where none are left or a pattern matches nothing.
std::vector<size_t> chosen_modules(const Checkpoint& source, const Selection& selection);
/// All of them; throws Error where the selection leaves any out.
std::vector<size_t> all_modules(const Checkpoint& source, const Rule& rule);

/// Adds a problem for each tensor that is quantized in another way: the new configuration would be wrong
/// about it.
void refuse_other_quantization(const Checkpoint& source, const std::string& to, Problems& problems);

}  // namespace twofour
