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

/// Checks the properties of every decoder, for models without a complete row.
void lint_common_shapes(const LintInput& input, const ModelFacts& model, LintReporter& reporter);

/// Compares each layer's experts, in any format, with each other and with config.json: none missing, none too
/// many, all alike.
void lint_experts(const LintInput& input, const ModelFacts& model, LintReporter& reporter);

/// Every positive integer of one of `keys` in config.json, at the top or in its text model.
std::set<int64_t> promised_counts(const Json& config, std::initializer_list<const char*> keys);

/// Checks that modules, experts, layers and heads are complete and fit each other, by headers and config.json
/// and, unless `headers_only`, by the values of tensors that change the meaning of weights.
void lint_modules(const LintInput& input, const std::vector<CodedModule>& coded, bool headers_only,
                  LintReporter& reporter);

/// Checks for codes that lack their scales or zero points, and for INT4 tensors that contradict each other or
/// the config.
void lint_complete(const LintInput& input, const std::vector<CodedModule>& coded, bool headers_only,
                   LintReporter& reporter);

/// Checks layers for multi-token prediction: their number and their parts.
void lint_drafts(const LintInput& input, const ModelFacts& model, LintReporter& reporter);

/// Compares the quantization config with the stored tensors.
void lint_config(const LintInput& input, const std::vector<CodedModule>& coded, LintReporter& reporter);

/// Compares the format that engines find in the config for each linear, by their own rules, with the stored
/// one. Leaves out `reported` modules. If the two config files `disagree`, uses config.json alone.
void lint_lookups(const LintInput& input, const std::vector<CodedModule>& coded,
                  const std::set<std::string>& reported, bool disagree, LintReporter& reporter);

/// True if a matrix of that name is not of a linear, or is of a linear that loaders never treat as quantized.
bool is_no_linear(std::string_view name);

/// True if a router is a module of its own kind, which no loader treats as a linear: one with a bias for the
/// choice of experts. Source: vLLM, models/deepseek_v2.py (GateLinear without quant_config); transformers,
/// DeepseekV3TopkRouter and its like.
bool is_own_router(const LintInput& input, const std::string& name);

/// Checks the types of members of a quantization config: groups, layers, lists.
void lint_config_types(const LintInput& input, LintReporter& reporter);

/// Compares the group sizes in configs with that of the block scales.
void lint_group_size(const LintInput& input, LintReporter& reporter);

}  // namespace twofour
