#pragma once
#include "lib/lint/subject.h"

/// The rules, by what they look at. Each part adds to the sink and goes on.
namespace twofour {

/// Modules, experts, layers, heads: what must be there beside each other, from headers and config.json.
void lint_modules(const LintSubject& subject, LintSink& sink);
/// What the quantization config says against what is stored.
void lint_config(const LintSubject& subject, LintSink& sink);
/// The group sizes that configs state against the one that the block scales have.
void lint_group_size(const LintSubject& subject, LintSink& sink);
/// Files that are no weights: tokenizer, code, chat templates.
void lint_sidecars(const LintSubject& subject, LintSink& sink);
/// Global, input and KV scales.
void lint_scalars(const LintSubject& subject, LintSink& sink);
/// Every byte of every tensor, and the hashes of an artifact's manifest.
void lint_weights(const LintSubject& subject, int jobs, LintSink& sink, Progress& progress);
/// Swaps that show only beside another checkpoint of the same model. Throws Error where the two share no
/// module.
void lint_against(const LintSubject& subject, const std::filesystem::path& other, LintSink& sink);

}  // namespace twofour
