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

/// Checks properties that every decoder has. It is for models whose family has no complete row.
void lint_common_shapes(const LintInput& input, const ModelFacts& model, LintReporter& reporter);

/// Compares towers that read images with vision_config, if the family's row has no parameters for them, and
/// widths of linears that follow each other.
void lint_vision(const LintInput& input, const ModelFacts& model, LintReporter& reporter);
/// Checks the settings of towers that read images, and those of the processor of images beside them.
void lint_vision_settings(const LintInput& input, LintReporter& reporter);

/// Reports parts that a layer lacks and the other layers of its kind have.
void lint_layer_parts(const LintInput& input, const ModelFacts& model, LintReporter& reporter);

/// Compares the experts of each layer, in any format, with each other and with config.json. No expert may be
/// missing or superfluous, and all must have the same tensors.
void lint_experts(const LintInput& input, const ModelFacts& model, LintReporter& reporter);

/// Returns every positive integer that a key of `keys` has in config.json, at the top or in its text model.
std::set<int64_t> promised_counts(const Json& config, std::initializer_list<const char*> keys);

/// Checks that modules, experts, layers and heads are complete and fit together. It uses headers and
/// config.json and, unless `headers_only`, the values of tensors that change the meaning of weights.
void lint_modules(const LintInput& input, const std::vector<CodedModule>& coded, bool headers_only,
                  LintReporter& reporter);

/// Reports codes without scales or zero points, and INT4 tensors that contradict each other or the config.
void lint_complete(const LintInput& input, const std::vector<CodedModule>& coded, bool headers_only,
                   LintReporter& reporter);

/// Checks the layers for multi-token prediction (MTP): their number and their parts.
void lint_drafts(const LintInput& input, const ModelFacts& model, LintReporter& reporter);

/// Compares the quantization config with the stored tensors.
void lint_config(const LintInput& input, const std::vector<CodedModule>& coded, LintReporter& reporter);

/// Compares the format that each engine, by its own rules, finds in the config for each linear with the
/// stored format. Modules in `reported` are left out. If the two config files `disagree`, only config.json is
/// used.
void lint_lookups(const LintInput& input, const std::vector<CodedModule>& coded,
                  const std::set<std::string>& reported, bool disagree, LintReporter& reporter);

/// True if a matrix is not a linear, or is a linear that loaders never treat as quantized.
bool is_no_linear(std::string_view name);

/// True if a router is a module of its own kind, which no loader treats as a linear: it has a bias for the
/// choice of experts. Source: vLLM, models/deepseek_v2.py (GateLinear without quant_config); transformers,
/// DeepseekV3TopkRouter and its like.
bool is_own_router(const LintInput& input, const std::string& name);

/// Checks the types of values in a quantization config: groups, layers, lists.
void lint_config_types(const LintInput& input, LintReporter& reporter);

/// Compares the group sizes that configs state with the group size of the block scales.
void lint_group_size(const LintInput& input, const std::vector<CodedModule>& coded, LintReporter& reporter);

}  // namespace twofour
