#pragma once
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lib/artifact/manifest.h"
#include "lib/lint/input.h"

namespace twofour {

/// Holds each layer's experts, in whatever format, against each other and against config.json: none missing,
/// none too many, all alike.
void lint_experts(const LintInput& input, LintReporter& reporter);

/// Every positive integer that config.json states under one of `keys`, at the top or in its text model.
std::set<int64_t> promised_counts(const Json& config, std::initializer_list<const char*> keys);

/// Whether `name` ends in one of the names that dialects give input scales.
bool is_input_scale(std::string_view name);

/// Reads twofour.json and compares everything but the data of tensors with it: files, headers, the names of
/// tensors. Nothing if it is missing or, which is reported, cannot be read.
std::optional<Manifest> lint_manifest(const LintInput& input, LintReporter& reporter);

/// Holds the hash of a tensor against the manifest.
void lint_tensor_hash(const LintInput& input, const Manifest& manifest, size_t tensor, const Hash128& hash,
                      LintReporter& reporter);

/// Modules, experts, layers, heads: what must be there beside each other, from headers and config.json, and,
/// unless `headers_only`, from the values of what changes the meaning of weights.
void lint_modules(const LintInput& input, bool headers_only, LintReporter& reporter);
/// What the quantization config says against what is stored.
void lint_config(const LintInput& input, LintReporter& reporter);
/// What engines find in the config for each linear against what is stored, by their own rules; without
/// modules of which something was `reported` already, and, where the two config files `disagree`, by
/// config.json alone.
void lint_lookups(const LintInput& input, const std::set<std::string>& reported, bool disagree,
                  LintReporter& reporter);
/// Whether a matrix of that name belongs to something else than a linear, or to a linear that loaders never
/// take for quantized.
bool is_no_linear(std::string_view name);
/// Whether a router is a module of its own kind, which no loader takes for a linear: one with a bias for the
/// choice of experts. Source: vLLM, models/deepseek_v2.py (GateLinear without quant_config); transformers,
/// DeepseekV3TopkRouter and its like.
bool is_own_router(const LintInput& input, const std::string& name);
/// Types of what a quantization config has: groups, layers, lists.
void lint_config_types(const LintInput& input, LintReporter& reporter);
/// The group sizes that configs state against the one that the block scales have.
void lint_group_size(const LintInput& input, LintReporter& reporter);
/// Files that are no weights: tokenizer, code, chat templates.
void lint_auxiliary_files(const LintInput& input, LintReporter& reporter);
/// Global, input and KV scales.
void lint_scalars(const LintInput& input, LintReporter& reporter);
/// Every byte of every tensor, and the hashes of an artifact's manifest.
void lint_weights(const LintInput& input, int jobs, LintReporter& reporter, Progress& progress);
/// Swaps that show only beside another checkpoint of the same model. Throws Error where the two share no
/// module.
void lint_against(const LintInput& input, const std::filesystem::path& other, LintReporter& reporter);

}  // namespace twofour
