#pragma once
#include <vector>

#include "lib/plan/plan.h"
#include "lib/findings/problems.h"

namespace twofour {

/// How a recipe's matrices are encoded. Throws Error on words that no option has and on combinations that
/// the dialect lacks.
EncodeRule encode_rule(const Recipe& recipe);

/// Rows of a module that are read at once.
int64_t encode_strip_rows(const WeightModule& module, const MemoryLimits& limits);

/// Plans quantize and fp8: chooses the linears, takes stacks apart, and adds what is written of each matrix
/// to `outputs`, which holds a tensor for each of the source in its order. Completes the plan's recipe.
void plan_encode(const Checkpoint& source, Plan& plan, std::vector<OutputTensor>& outputs,
                 Problems& problems);

/// One matrix that a stack of experts holds for each of them.
struct StackPart {
  const char* leaf;  ///< "gate_proj"
  int64_t first, step, rows;
};
/// What the rows of a stack are; empty where no naming rule knows it.
std::vector<StackPart> stack_parts(const Checkpoint& checkpoint, const std::string& name, int64_t rows);
/// "model.layers.0.mlp.experts.gate_up_proj" -> "model.layers.0.mlp.experts.3.gate_proj"
std::string expert_name(const std::string& stack, int64_t expert, const char* leaf);

}  // namespace twofour
