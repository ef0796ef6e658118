#pragma once
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lib/artifact/manifest.h"
#include "lib/lint/subject.h"

namespace twofour {

/// Holds each layer's experts, in whatever format, against each other and against config.json: none missing,
/// none too many, all alike.
void lint_experts(const LintSubject& subject, LintSink& sink);

/// Every positive integer that config.json states under one of `keys`, at the top or in its text model.
std::set<int64_t> promised_counts(const Json& config, std::initializer_list<const char*> keys);

/// Whether `name` ends in one of the names that dialects give input scales.
bool is_input_scale(std::string_view name);

/// Reads twofour.json and holds against it what is no tensor's data: files, headers, the names of tensors.
/// Nothing where there is none or, then told, none that can be read.
std::optional<Manifest> lint_manifest(const LintSubject& subject, LintSink& sink);

/// Holds the hash of a tensor against the manifest.
void lint_tensor_hash(const LintSubject& subject, const Manifest& manifest, size_t tensor,
                      const Hash128& hash, LintSink& sink);

/// Modules, experts, layers, heads: what must be there beside each other, from headers and config.json, and,
/// unless `headers_only`, from the values of what changes the meaning of weights.
void lint_modules(const LintSubject& subject, bool headers_only, LintSink& sink);
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
