#pragma once
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "lib/recipe/selection/input_scales.h"
#include "lib/source/dialects/output_dialect.h"
#include "lib/write/methods/module_rewrite.h"
#include "lib/write/plan/method.h"

namespace twofour {

/// Functions for methods that rewrite modules under their own names.

/// The global scales of a module, as stored bits and as multipliers.
ModuleRewrite::Scales read_module_scales(const Checkpoint& source, const Nvfp4Linear& module,
                                         Problems& problems);
/// Adds a problem if `tensor`, a tensor of the source, is made in pieces larger than a worker may hold.
void refuse_large(const TensorRewrite& rewrite, size_t tensor, Planner& planner);
/// Gives KV scales the type that the dialect requires, if it requires one. Loaders know the names of either
/// dialect.
void plan_kv_scales(const OutputDialect& dialect, Planner& planner);

/// The NVFP4 modules that a selection chooses, as indices. Throws Error if there are none or if a pattern
/// matches nothing.
std::vector<size_t> chosen_modules(const Checkpoint& source, const Selection& selection);
/// All NVFP4 modules, as indices. Throws Error if the selection of the rule excludes any.
std::vector<size_t> all_modules(const Checkpoint& source, const Rule& rule);

/// True if a source has codes, or values of few bits, outside of NVFP4 modules.
bool has_other_formats(const Checkpoint& source);
/// Adds a problem for each tensor of few bits, or of find_unknown_codes(), that belongs to no linear of a
/// known format. Its layer would be reported wrongly.
void refuse_unknown_weights(Planner& planner);

/// Gives a module the names and scales of another dialect. Adds a problem if the dialect requires separate
/// experts and the module is a stack. `input_scale` is the choice of a rule, if there is one.
void translate_nvfp4(const std::string& becomes, const Nvfp4Linear& module, const OutputDialect& dialect,
                     Planner& planner, const InputScaleChoice& input_scale = {});

/// A rule's settings for input scales in a dialect. Throws Error if the dialect or other settings contradict
/// them.
InputScaleRule input_scale_rule(const Rule& rule, const OutputDialect& dialect);
/// Adds the source's linears that a rule does not write. It does so only if the settings depend on these
/// linears.
void add_neighbours(InputScaleRule& rule, Planner& planner);
/// Gives NVFP4 modules in the planner's dialect the input scales that a rule asks for.
void change_input_scales(const Rule& rule, const std::vector<Linear>& modules, Planner& planner);
/// Writes NVFP4 modules of the source, in the planner's dialect, with input scales that a rule chose.
/// rule->modules[i] gets chosen[i], for each i from `first` on.
void write_input_scales(const std::string& becomes, const std::shared_ptr<const InputScaleRule>& rule,
                        const std::vector<ChosenInputScale>& chosen, size_t first, Planner& planner);

/// Plans a linear whose format and values stay. It is copied if there is no dialect, or if it has the
/// spelling of the planner's dialect. Otherwise it gets the dialect's names, shapes and types of scales. Adds
/// a problem if the dialect cannot store it. `fp8_scale_type` is the type that all FP8 scales must have, if
/// there is one.
void keep_linear(const std::string& becomes, const Linear& linear, std::optional<DType> fp8_scale_type,
                 Planner& planner);

}  // namespace twofour
