#pragma once
#include <cstdint>
#include <initializer_list>
#include <set>
#include <string>
#include <string_view>

#include "lib/lint/bytes/input.h"
#include "lib/lint/config/coded_modules.h"
#include "lib/lint/family/family.h"

namespace twofour {

/// What holds of every decoder, for models that no row describes whole.
void lint_common_shapes(const LintInput& input, const ModelFacts& model, LintReporter& reporter);

/// Holds each layer's experts, in whatever format, against each other and against config.json: none missing,
/// none too many, all alike.
void lint_experts(const LintInput& input, const ModelFacts& model, LintReporter& reporter);

/// Every positive integer that config.json states under one of `keys`, at the top or in its text model.
std::set<int64_t> promised_counts(const Json& config, std::initializer_list<const char*> keys);

/// Modules, experts, layers, heads: what must be there beside each other, from headers and config.json, and,
/// unless `headers_only`, from the values of what changes the meaning of weights.
void lint_modules(const LintInput& input, const std::vector<CodedModule>& coded, bool headers_only,
                  LintReporter& reporter);

/// Codes that lack what makes them numbers and, of INT4, contradict each other or the config.
void lint_complete(const LintInput& input, const std::vector<CodedModule>& coded, bool headers_only,
                   LintReporter& reporter);

/// Layers for multi-token prediction: their count, what they consist of.
void lint_drafts(const LintInput& input, const ModelFacts& model, LintReporter& reporter);

/// What the quantization config says against what is stored.
void lint_config(const LintInput& input, const std::vector<CodedModule>& coded, LintReporter& reporter);

/// What engines find in the config for each linear against what is stored, by their own rules; without
/// modules of which something was `reported` already, and, where the two config files `disagree`, by
/// config.json alone.
void lint_lookups(const LintInput& input, const std::vector<CodedModule>& coded,
                  const std::set<std::string>& reported, bool disagree, LintReporter& reporter);

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

}  // namespace twofour
