#pragma once
#include <string_view>

namespace twofour {

/// True if engines have a reader for a `quant_method`, spelled as in config.json. The codes of an unknown
/// method have no known meaning, with any names and types. Source: transformers, quantizers/auto.py; vLLM,
/// quantization/__init__.py; SGLang, layers/quantization/__init__.py.
bool is_known_method(std::string_view method);

/// True if a method has codes of its own, so that codes with other names and types are not the method's.
bool has_own_codes(std::string_view method);

}  // namespace twofour
