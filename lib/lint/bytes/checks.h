#pragma once
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "lib/lint/bytes/input.h"
#include "lib/recipe/artifact/manifest.h"

namespace twofour {

/// True if `name` ends in a name of input scales in some dialect.
bool is_input_scale(std::string_view name);

/// Reads the numbers of a float tensor of at most 1 MiB. Empty: the tensor is larger, has another type, or is
/// incomplete.
std::vector<float> read_scales(const LintInput& input, size_t tensor);

/// Reads twofour.json and compares files, headers and names of tensors with it, but not the bytes of tensors.
/// Returns nullopt if it is missing, or if it cannot be read, which is then reported.
std::optional<Manifest> lint_manifest(const LintInput& input, LintReporter& reporter);
/// Compares the hash of a tensor's bytes with the manifest.
void lint_tensor_hash(const LintInput& input, const Manifest& manifest, size_t tensor, const Hash128& hash,
                      LintReporter& reporter);
/// Reports tensors whose type in the header no parameter of that name can have.
void lint_types(const LintInput& input, LintReporter& reporter);
/// Checks modules in FP8, MXFP8, MXFP4 and INT4. They must have the parts that similar modules have, and
/// scales that fit.
void lint_parts(const LintInput& input, LintReporter& reporter);
/// Checks global, input and KV scales.
void lint_scalars(const LintInput& input, LintReporter& reporter);
/// Checks the values of small tensors against the config: zero points, orders of groups, and scales that must
/// be powers of two.
void lint_promised_values(const LintInput& input, LintReporter& reporter);
}  // namespace twofour
