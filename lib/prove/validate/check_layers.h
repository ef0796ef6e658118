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

/// Runs each block of the plan that has w13 and w2 in a layout on seeded activations: with the source's
/// weights, with them pruned, and with the artifact's weights, all in double. Adds to `report`. If statistics
/// or masks chose the weights of `source`, those of `original` are the source's weights.
void check_layers(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                  const Checkpoint& original, const ValidateOptions& options, ValidateReport& report);

/// Runs the feed-forward blocks of two checkpoints on seeded tokens through moe_reference and compares their
/// outputs: options sample the blocks that have a module in `filter`. Only experts that a token visits are
/// read. Biases and a model's own variant of the activation are left out. Blocks that are incomplete, differ
/// in shape or are too large for the promised memory are findings, and so are tensors that hold no weights
/// (severity error). Throws ReadError.
void run_stored_layers(const Matrices& source, const Matrices& other, const ModuleFilter& filter,
                       const ValidateOptions& options, Findings& findings, std::vector<LayerReport>& layers,
                       LayerCoverage& coverage);

/// Sets the layer's cosine and relative error between `ours` and `dense`.
void compare_outputs(const std::vector<double>& dense, const std::vector<double>& ours, LayerReport& layer);

/// Positions of the layers to run, out of `count` that can be run, in order: all, or options.layers of them:
/// the first, the last and, by the seed, some between.
std::vector<size_t> sample_layers(size_t count, const ValidateOptions& options);

/// options.tokens tokens of a layer with `experts` experts and a router that picks `topk`. Unless
/// options.experts is 0, they are routed only among that many experts, drawn by `seed`.
Tokens sample_tokens(const ValidateOptions& options, int64_t h, int64_t experts, int64_t topk, uint64_t seed);

/// The reason why a layer of an artifact, with w13 of that shape, is not run in double; nothing if it is run.
std::optional<std::string> why_not_referenced(const Checkpoint& checkpoint, const std::string& block,
                                              const Shape& w13);

/// Counts a layer that cannot be run, and adds the note "layer-not-run".
void note_not_run(const std::string& block, const std::string& why, LayerCoverage& coverage, Findings& notes);

}  // namespace twofour
