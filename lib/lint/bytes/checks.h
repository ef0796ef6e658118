#pragma once
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "lib/base/threads/progress.h"
#include "lib/lint/bytes/figures.h"
#include "lib/lint/bytes/input.h"
#include "lib/recipe/artifact/manifest.h"

namespace twofour {

/// True if `name` ends in a dialect's name of input scales.
bool is_input_scale(std::string_view name);

/// The numbers of a float tensor of at most 1 MiB; empty if it is not such a tensor or not whole.
std::vector<float> read_scales(const LintInput& input, size_t tensor);

/// Reads twofour.json and compares files, headers and names of tensors with it, but no data of tensors.
/// Returns nullopt if it is missing or (reported) cannot be read.
std::optional<Manifest> lint_manifest(const LintInput& input, LintReporter& reporter);
/// Compares the hash of a tensor with the manifest.
void lint_tensor_hash(const LintInput& input, const Manifest& manifest, size_t tensor, const Hash128& hash,
                      LintReporter& reporter);
/// Reports types in headers that no parameter of that name has.
void lint_types(const LintInput& input, LintReporter& reporter);
/// Checks that modules in FP8, MXFP8, MXFP4 and INT4 have the parts of similar modules, and scales that fit.
void lint_parts(const LintInput& input, LintReporter& reporter);
/// Checks global, input and KV scales.
void lint_scalars(const LintInput& input, LintReporter& reporter);
/// Checks small tensors against the config: zero points, orders of groups, scales that are powers of two.
void lint_promised_values(const LintInput& input, LintReporter& reporter);
/// Checks every byte of every tensor, and the hashes of an artifact's manifest. Returns the figures of all
/// whole matrices, by tensor and expert. `beside` runs once, on one thread while the others read.
std::vector<MatrixFigures> lint_weights(const LintInput& input, int jobs, const std::function<void()>& beside,
                                        LintReporter& reporter, Progress& progress);

}  // namespace twofour
