#pragma once
#include <span>

#include "lib/lint/siblings/members.h"

namespace twofour {

/// Reports weights whose figures are far from those of their siblings: other experts of the layer, the same
/// projection in other layers, or the whole checkpoint. README.md of lib/lint lists the figures and
/// thresholds.
void lint_outliers(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// Reports norms, decays, convolutions and embeddings of one layer that differ from those of all other layers
/// by a known change.
void lint_layer_vectors(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// Reports square matrices that are transposed: their rows follow the channels that columns follow in other
/// layers.
void lint_turned(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// Reports weights that were never trained, if the same matrices of other layers were. The sizes of their
/// rows and columns differ by chance alone.
void lint_untrained(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// Compares the largest number of each matrix with the largest number that its scales allow.
void lint_full_scale(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// Reports global scales, and scales of blocks and rows, that are all one number and should differ.
void lint_copied_scales(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// Compares input scales, and KV scales, with each other. Reports scales that are copied, constant, missing
/// or far from the others.
void lint_sibling_scales(const LintInput& input, std::span<Member> members, LintReporter& reporter);

/// The part of lint_sibling_scales() for KV scales. Skips layers that `reported` covers.
void lint_cache_scales(const LintInput& input, const Reported& reported, LintReporter& reporter);

}  // namespace twofour
