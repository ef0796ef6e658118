#pragma once
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/synth/shapes.h"

/// What fills the lists of modules in published configs: SynthPublication::fill.

namespace twofour {

/// ModelOpt's MIXED_PRECISION: quantized_layers of both files, and config_groups where config.json has any. A
/// key is a linear, or the container of a layer's experts. Source: NVIDIA/Model-Optimizer,
/// modelopt/torch/export/quant_utils.py, convert_hf_config.py.
void fill_modelopt_linears(const SynthListing& listing, Json& quantization, Json& hf_quant);
void fill_modelopt_containers(const SynthListing& listing, Json& quantization, Json& hf_quant);

/// The names of linears that stay floats and that `pattern` matches.
std::vector<std::string> float_modules(const SynthListing& listing, const std::string& pattern);

/// compressed-tensors: the scheme NVFP4 of llm-compressor, added to a group that has targets.
void fill_nvfp4_scheme(Json& group);

/// compressed-tensors: every linear that stays a float outside drafts, added to `ignore`.
void fill_ignored_names(const SynthListing& listing, Json& quantization, Json& hf_quant);

/// Adds names to an array.
void append_names(Json& list, const std::vector<std::string>& names);

}  // namespace twofour
