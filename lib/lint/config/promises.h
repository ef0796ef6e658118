#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lib/dialects/quantization_said.h"
#include "lib/lint/config/coded_modules.h"

namespace twofour {

/// What a config says of the inputs of a module.
enum class InputPromise {
  kUnknown,  ///< nothing, or what no rule here follows
  kFloats,   ///< they are not quantized
  kDynamic,  ///< quantized while the model runs: no scale is stored
  kStatic,   ///< quantized by a stored scale
};

/// What a config says of one module, of its inputs, too.
struct Promise : SaidOfModule {
  InputPromise inputs = InputPromise::kUnknown;
};

/// One quantization config with what it says of each module, by names and patterns alone.
struct Promises : QuantizationSaid {
  Promises(const QuantizationSaid& said, const LintInput& input, const std::vector<CodedModule>& modules);

  std::vector<Promise> of;  ///< of each module
};

/// ModelOpt's algorithms, TensorRT-LLM's among them.
struct Algorithm {
  const char* name;
  const char* codes;  ///< CodedModule::text() begins so; "": not said here
  InputPromise inputs;
  bool scales_inputs_first = false;  ///< pre_quant_scale belongs to it
};
/// nullptr: nobody knows it.
const Algorithm* find_algorithm(std::string_view name);

/// A setting for a message; "none" where it is missing.
std::string shown_setting(const Json& value);

/// What values keys would have to have, by the modules that each is about.
class KeyVotes {
 public:
  /// `expected`: what agrees with module `m`; empty where what is found does.
  void add(const std::string& key, size_t m, std::string expected, std::string found);
  /// Calls f(key, expected, found, first module, count) for keys that most modules contradict.
  template <class F>
  void for_wrong(F&& f) const {
    for (const auto& [key, vote] : votes_) {
      size_t wrong = 0;
      const std::pair<const std::string, Against>* most = nullptr;
      for (const auto& against : vote.against) {
        wrong += against.second.count;
        if (most == nullptr || against.second.count > most->second.count) most = &against;
      }
      if (2 * wrong > vote.count) f(key, most->first, vote.found, most->second.first, wrong);
    }
  }

 private:
  struct Against {
    size_t count = 0, first = 0;
  };
  struct Vote {
    size_t count = 0;
    std::string found;
    std::map<std::string, Against> against;  ///< by what is expected
  };
  std::map<std::string, Vote> votes_;
};

/// What a config promises of formats against what is stored, as far as the config alone says it. Modules of
/// which something was said are added to `reported`. Returns whether the method is right.
bool lint_promises(const LintInput& input, const QuantizationSaid& said,
                   const std::vector<CodedModule>& modules, std::set<std::string>& reported,
                   LintReporter& reporter);

// Its parts.

/// The method and, of ModelOpt, the algorithm, the sizes of blocks. Returns whether the method is right: if
/// not, its keys mean nothing.
bool lint_methods(const LintInput& input, const Promises& promises, const std::vector<CodedModule>& modules,
                  std::set<std::string>& reported, LintReporter& reporter);
/// Keys of GPTQ and AWQ, and exceptions from them.
void lint_integers(const LintInput& input, const Promises& promises, const std::vector<CodedModule>& modules,
                   KeyVotes& votes, LintReporter& reporter);
/// Groups of compressed-tensors, key by key.
void lint_groups(const LintInput& input, const Promises& promises, const std::vector<CodedModule>& modules,
                 std::set<std::string>& reported, LintReporter& reporter);
/// Input scales.
void lint_inputs(const LintInput& input, const Promises& promises, const std::vector<CodedModule>& modules,
                 LintReporter& reporter);
/// What changes the meaning of codes, and floats where there must be codes.
void lint_meaning(const LintInput& input, const Promises& promises, const std::vector<CodedModule>& modules,
                  LintReporter& reporter);
/// Patterns, entries and groups that no module belongs to.
void lint_unused_patterns(const LintInput& input, const QuantizationSaid& said, LintReporter& reporter);
/// The KV cache.
void lint_cache(const LintInput& input, LintReporter& reporter);

}  // namespace twofour
