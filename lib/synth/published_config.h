#pragma once
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/synth/shapes.h"

/// Functions for SynthPublication::fill, which fill the lists of modules in published configs.

namespace twofour {

/// Two functions that fill the configs of ModelOpt's MIXED_PRECISION. They fill quantized_layers of both
/// files, and config_groups if config.json has any. A key of quantized_layers is a linear or, in the second
/// function, the container of a layer's experts. Source: NVIDIA/Model-Optimizer,
/// modelopt/torch/export/quant_utils.py, convert_hf_config.py.
void fill_modelopt_linears(const SynthListing& listing, Json& quantization, Json& hf_quant);
void fill_modelopt_containers(const SynthListing& listing, Json& quantization, Json& hf_quant);

/// The names of unquantized linears that `pattern` matches.
std::vector<std::string> float_modules(const SynthListing& listing, const std::string& pattern);

/// Adds the scheme NVFP4, as llm-compressor writes it, to a group of compressed-tensors that has targets.
void fill_nvfp4_scheme(Json& group);

/// Adds every unquantized linear outside of drafts to `ignore` of compressed-tensors.
void fill_ignored_names(const SynthListing& listing, Json& quantization, Json& hf_quant);

/// Adds names to a JSON array.
void append_names(Json& list, const std::vector<std::string>& names);

}  // namespace twofour
