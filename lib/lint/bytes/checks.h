#pragma once
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "lib/artifact/manifest.h"
#include "lib/lint/bytes/figures.h"
#include "lib/lint/bytes/input.h"
#include "lib/threads/progress.h"

namespace twofour {

/// Whether `name` ends in one of the names that dialects give input scales.
bool is_input_scale(std::string_view name);

/// The numbers of a float tensor of at most 1 MiB; empty if it is not such a tensor or not whole.
std::vector<float> read_scales(const LintInput& input, size_t tensor);

/// Reads twofour.json and compares everything but the data of tensors with it: files, headers, the names of
/// tensors. Nothing if it is missing or, which is reported, cannot be read.
std::optional<Manifest> lint_manifest(const LintInput& input, LintReporter& reporter);
/// Holds the hash of a tensor against the manifest.
void lint_tensor_hash(const LintInput& input, const Manifest& manifest, size_t tensor, const Hash128& hash,
                      LintReporter& reporter);
/// Types in headers that no parameter of that name has.
void lint_types(const LintInput& input, LintReporter& reporter);
/// Parts of modules in FP8, MXFP8, MXFP4 and INT4: what others like them have, and scales that fit.
void lint_parts(const LintInput& input, LintReporter& reporter);
/// Global, input and KV scales.
void lint_scalars(const LintInput& input, LintReporter& reporter);
/// Small values that a config promises something of: zero points, orders of groups, scales that are powers of
/// two.
void lint_promised_values(const LintInput& input, LintReporter& reporter);
/// Every byte of every tensor, and the hashes of an artifact's manifest. The figures of all whole matrices,
/// by tensor and expert. `beside` runs once, on one of the threads while the others read.
std::vector<MatrixFigures> lint_weights(const LintInput& input, int jobs, const std::function<void()>& beside,
                                        LintReporter& reporter, Progress& progress);

}  // namespace twofour
