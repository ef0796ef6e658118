#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

#include "lib/artifact/manifest.h"
#include "lib/plan/plan.h"
#include "lib/findings/problems.h"

namespace twofour {

/// Parts of plan_rewrite. `outputs` holds a tensor for each of the source, in its order; some are left out.
void plan_dialect(const Checkpoint& source, const Manifest* written, Plan& plan,
                  std::vector<OutputTensor>& outputs, Problems& problems);
void plan_bf16(const Checkpoint& source, Plan& plan, std::vector<OutputTensor>& outputs);

/// The dialect of that name, for modules that are no stacks. Throws Error where there is none.
const Nvfp4Dialect& dialect_named(std::string_view name);
/// Of a dialect's scalars: [] or [1].
std::vector<int64_t> scalar_shape(std::string_view dialect);
/// KV scales take the type that ModelOpt or compressed-tensors gives them; loaders know either's names.
void plan_kv_scales(const Checkpoint& source, std::string_view dialect, std::vector<OutputTensor>& outputs);

/// Modules that change their dialect, or all of an artifact that are in it already; sets the recipe's dialect
/// where it names none, and Plan::keeps_dialect. Throws Error where all of a checkpoint are in it already.
std::vector<size_t> modules_for_dialect(const Checkpoint& source, Plan& plan);
/// The NVFP4 modules that a selection leaves. Throws Error where none are left or a pattern matches nothing.
std::vector<size_t> chosen_modules(const Checkpoint& source, const Selection& selection);
/// All of them; throws Error where the selection leaves any out.
std::vector<size_t> all_modules(const Checkpoint& source, const Recipe& recipe);

/// A source that is quantized in other ways, too, would be told falsely by the new configuration.
void refuse_other_quantization(const Checkpoint& source, const Plan& plan, Problems& problems);

inline void derive_by(OutputTensor& t, Op op) {
  t.kind = OutputTensor::Kind::kDerived;
  t.op = op;
}

/// Not by its name, for a source may have a tensor named "".
inline void leave_out(OutputTensor& t) { t.source = SIZE_MAX; }
inline bool is_left_out(const OutputTensor& t) { return t.source == SIZE_MAX; }

}  // namespace twofour
