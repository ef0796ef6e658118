#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lib/lint/rules/rules.h"
#include "lib/source/checkpoint/matrices.h"

namespace twofour {

/// Ratios of numbers to those of another checkpoint, by layer: "model.layers.3".
using LayerFactors = std::map<std::string, std::vector<double>>;
/// The layer of a module or tensor; "": none.
std::string layer_of(const std::string& name);
/// True if something in the same layer has the inverse factor, as a linear has that reads a norm.
bool is_made_up(const LayerFactors& factors, const std::string& name, double factor);

/// Compares the other tensors of `a` with `b`: vectors, scales of inputs, embeddings. `linears`: the linears
/// of `a`; `factors`: their factors; `moved`: linears that are elsewhere in `b`, with their other tensors.
/// Returns the factors of norms.
LayerFactors lint_other_tensors(const Checkpoint& a, const Matrices& linears, const Checkpoint& b,
                                const LayerFactors& factors, const std::set<std::string>& moved,
                                LintReporter& reporter);

}  // namespace twofour
