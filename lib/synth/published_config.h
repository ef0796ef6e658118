#pragma once
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/synth/shapes.h"

/// Functions for SynthPublication::fill, which fill the lists of modules in published configs.

namespace twofour {

/// ModelOpt's MIXED_PRECISION: quantized_layers of both files, and config_groups if config.json has any. A
/// key is a linear, or the container of a layer's experts. Source: NVIDIA/Model-Optimizer,
/// modelopt/torch/export/quant_utils.py, convert_hf_config.py.
void fill_modelopt_linears(const SynthListing& listing, Json& quantization, Json& hf_quant);
void fill_modelopt_containers(const SynthListing& listing, Json& quantization, Json& hf_quant);

/// The names of unquantized linears that `pattern` matches.
std::vector<std::string> float_modules(const SynthListing& listing, const std::string& pattern);

/// compressed-tensors: adds the scheme NVFP4 of llm-compressor to a group that has targets.
void fill_nvfp4_scheme(Json& group);

/// compressed-tensors: adds every unquantized linear outside drafts to `ignore`.
void fill_ignored_names(const SynthListing& listing, Json& quantization, Json& hf_quant);

/// Adds names to an array.
void append_names(Json& list, const std::vector<std::string>& names);

}  // namespace twofour
