#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "lib/prove/validate/checks.h"
#include "lib/prove/validate/validate.h"
#include "lib/run/runtime/tokens.h"

namespace twofour {

/// Runs each block of the plan that has w13 and w2 in a layout on seeded activations, in double. Each block
/// runs three times: with the source's weights, with these weights after pruning, and with the artifact's
/// weights. Adds to `report`. If statistics or masks chose the weights of `source`, the weights of `original`
/// count as the source's.
void check_layers(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                  const Checkpoint& original, const ValidateOptions& options, ValidateReport& report);

/// Runs the feed-forward blocks of two checkpoints on seeded tokens through moe_reference, and compares their
/// outputs. `options` sample the blocks that have a module in `filter`. Only experts that a token visits are
/// read. Biases and model-specific activations are left out. Blocks that are incomplete, have different
/// shapes or are too large for the promised memory are findings. Tensors that do not contain weights are
/// findings with severity error. Throws ReadError.
void run_stored_layers(const Matrices& source, const Matrices& other, const ModuleFilter& filter,
                       const ValidateOptions& options, Findings& findings, std::vector<LayerReport>& layers,
                       LayerCoverage& coverage);

/// Sets the cosine and the relative error of `layer`, which compare `ours` with `dense`.
void compare_outputs(const std::vector<double>& dense, const std::vector<double>& ours, LayerReport& layer);

/// The indices of the layers to run, in order. `count` layers can be run. Either all layers are run, or
/// options.layers of them: the first, the last, and some between them that the seed chooses.
std::vector<size_t> sample_layers(size_t count, const ValidateOptions& options);

/// Draws options.tokens tokens for a layer with `experts` experts and a router that chooses `topk` of them.
/// Unless options.experts is 0, the tokens use only that many experts, which `seed` chooses.
Tokens sample_tokens(const ValidateOptions& options, int64_t h, int64_t experts, int64_t topk, uint64_t seed);

/// The reason why a layer of an artifact is not run in double. Empty if it is run. `w13` is the shape of its
/// w13.
std::optional<std::string> why_not_referenced(const Checkpoint& checkpoint, const std::string& block,
                                              const Shape& w13);

/// Counts a layer that cannot be run, and adds the note "layer-not-run".
void note_not_run(const std::string& block, const std::string& why, LayerCoverage& coverage, Findings& notes);

}  // namespace twofour
