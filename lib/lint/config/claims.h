#pragma once
#include <map>
#include <string>
#include <string_view>

#include "lib/lint/bytes/input.h"

namespace twofour {

/// What a quantization config promises of all modules, of either producer.
struct Claims {
  bool modelopt = false, compressed_tensors = false;
  std::string algo;                            ///< of ModelOpt: "NVFP4", "MIXED_PRECISION", ...
  std::map<std::string, std::string> ignored;  ///< pattern to the key that has it
  std::map<std::string, std::string> layers;   ///< quantized_layers: module to algorithm
  bool all_linears = false;                    ///< whatever is not ignored is quantized
  bool only_nvfp4 = false;                     ///< and in no other format
};

Claims read_claims(const LintInput& input);

/// A member that is a text; empty if there is none.
std::string text_at(const Json& json, const char* key);

/// Patterns, entries and groups that no module belongs to.
void lint_unused_patterns(const LintInput& input, const Claims& claims, LintReporter& reporter);

}  // namespace twofour
