#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lib/lint/rules/rules.h"
#include "lib/source/linears/matrices.h"

namespace twofour {

/// For each layer ("model.layers.3"), the ratios of its numbers to those of another checkpoint.
using LayerFactors = std::map<std::string, std::vector<double>>;
/// Returns the layer of a module or tensor; "": it is in no layer.
std::string layer_of(const std::string& name);
/// True if a tensor of the same layer has the inverse factor, which cancels `factor`: for example, the linear
/// that reads a norm.
bool is_made_up(const LayerFactors& factors, const std::string& name, double factor);

/// Compares those tensors of `a` that are not linears with `b`: vectors, scales of inputs, embeddings.
/// `linears` are the linears of `a`, and `factors` their ratios. `moved` are linears that have another name
/// in `b`, as the tensors beside them have. Returns the ratios of norms.
LayerFactors lint_other_tensors(const Checkpoint& a, const Matrices& linears, const Checkpoint& b,
                                const LayerFactors& factors, const std::set<std::string>& moved,
                                LintReporter& reporter);

}  // namespace twofour
