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

/// Functions of the methods that rewrite modules under their own names.

/// The global scales of a module, by the stored bits and as multipliers.
ModuleRewrite::Scales read_module_scales(const Checkpoint& source, const Nvfp4Linear& module,
                                         Problems& problems);
/// Adds a problem if a tensor of the source becomes more bytes at once than a worker may hold.
void refuse_large(const TensorRewrite& rewrite, size_t tensor, Planner& planner);
/// Gives KV scales the type of the dialect, if it has one; loaders know the names of either dialect.
void plan_kv_scales(const OutputDialect& dialect, Planner& planner);

/// The NVFP4 modules that a selection chooses. Throws Error if there are none or a pattern matches nothing.
std::vector<size_t> chosen_modules(const Checkpoint& source, const Selection& selection);
/// All NVFP4 modules; throws Error if the selection excludes any.
std::vector<size_t> all_modules(const Checkpoint& source, const Rule& rule);

/// True if a source has codes or values of few bits beside those of NVFP4 modules.
bool has_other_formats(const Checkpoint& source);
/// Adds a problem for each tensor of few bits, or of find_unknown_codes(), that belongs to no linear of a
/// known format: its layer would be reported wrongly.
void refuse_unknown_weights(Planner& planner);

/// Gives a module the names and scales of another dialect. Adds a problem if the dialect needs experts one by
/// one. `input_scale`: the choice of a rule, if any.
void translate_nvfp4(const std::string& becomes, const Nvfp4Linear& module, const OutputDialect& dialect,
                     Planner& planner, const InputScaleChoice& input_scale = {});

/// The input scale settings of a rule in a dialect. Throws Error if the dialect or other settings contradict
/// them.
InputScaleRule input_scale_rule(const Rule& rule, const OutputDialect& dialect);
/// Adds the source's linears that a rule does not write, if its settings depend on them.
void add_neighbours(InputScaleRule& rule, Planner& planner);
/// Gives NVFP4 modules, in the planner's dialect, the input scales that a rule asks for.
void change_input_scales(const Rule& rule, const std::vector<Linear>& modules, Planner& planner);
/// Writes NVFP4 modules of the source, in the planner's dialect, with the input scales that a rule chose:
/// `chosen` of the modules from `first` on.
void write_input_scales(const std::string& becomes, const std::shared_ptr<const InputScaleRule>& rule,
                        const std::vector<ChosenInputScale>& chosen, size_t first, Planner& planner);

/// Keeps the format and values of a linear: copied if it has the spelling of the planner's dialect or there
/// is no dialect, else with the dialect's names, shapes and types of scales. Adds a problem if the dialect
/// cannot hold it. `fp8_scale_type`: the type of all FP8 scales, if there is one.
void keep_linear(const std::string& becomes, const Linear& linear, std::optional<DType> fp8_scale_type,
                 Planner& planner);

}  // namespace twofour
