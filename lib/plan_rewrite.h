#pragma once
#include <vector>

#include "lib/artifact/manifest.h"
#include "lib/plan/plan.h"
#include "lib/findings/problems.h"

namespace twofour {

/// The tensors of a rewritten checkpoint, not yet in files: what each is called and how it comes from the
/// source. Sets the plan's modules and what belongs to them. `written` is what twofour.json says of a source
/// that twofour wrote, else nullptr. Throws Error on a recipe or a source that the rewrite cannot be made of;
/// what is wrong with single tensors goes into `problems`.
std::vector<OutputTensor> plan_rewrite(const Checkpoint& source, const Manifest* written, Plan& plan,
                                       Problems& problems);

}  // namespace twofour
