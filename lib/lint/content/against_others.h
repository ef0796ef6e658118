#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lib/checkpoint/matrices.h"
#include "lib/lint/rules/rules.h"

namespace twofour {

/// By how much numbers are larger than those of another checkpoint, by layer: "model.layers.3".
using LayerFactors = std::map<std::string, std::vector<double>>;
/// The layer that a module or tensor is in; "": none.
std::string layer_of(const std::string& name);
/// Whether something in the same layer has the contrary factor: a norm and what reads it.
bool is_made_up(const LayerFactors& factors, const std::string& name, double factor);

/// Holds what is no linear of `a` against `b`: vectors, scales of inputs, embeddings. `linears` are those of
/// `a`, `factors` theirs, `moved` those that are elsewhere in `b`, as is what belongs to them. Returns the
/// factors of norms.
LayerFactors lint_other_tensors(const Checkpoint& a, const Matrices& linears, const Checkpoint& b,
                                const LayerFactors& factors, const std::set<std::string>& moved,
                                LintReporter& reporter);

}  // namespace twofour
