#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lib/checkpoint/quantization_said.h"
#include "lib/dialects/said_scheme.h"
#include "lib/lint/config/coded_modules.h"

namespace twofour {

/// What a config says of one module, of its inputs, too.
struct Promise : SaidOfModule {
  InputPromise inputs = InputPromise::kUnknown;
};

/// One quantization config with what it says of each module, by names and patterns alone.
struct Promises : QuantizationSaid {
  Promises(const QuantizationSaid& said, const LintInput& input, const std::vector<CodedModule>& modules);

  std::vector<Promise> of;  ///< of each module
};

/// Whether a module may be in the format of an algorithm.
bool is_in(const CodedModule& module, const Algorithm& algorithm);

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

/// What checks of a config against modules are given, and the votes of modules on its keys.
class PromiseCheck {
 public:
  /// `reported`: modules of which something was said, to which a check adds its own.
  PromiseCheck(const LintInput& s, const Promises& p, const std::vector<CodedModule>& modules,
               std::set<std::string>& reported, LintReporter& reporter)
      : s_(s), p_(p), modules_(modules), reported_(reported), reporter_(reporter) {}

 protected:
  /// Reports something of a key, which is given by its path, or of another place.
  template <class... Args>
  void add(const std::string& key, fmt::format_string<Args...> text, Args&&... args) {
    reporter_.add("config-format", s_.setting(key), text, std::forward<Args>(args)...);
  }
  /// The path of a key.
  std::string key(const char* name) const { return p_.place + name; }
  /// Reports the keys that most modules contradict; then all modules are.
  void report_votes();

  const LintInput& s_;
  const Promises& p_;
  const std::vector<CodedModule>& modules_;
  std::set<std::string>& reported_;
  LintReporter& reporter_;
  KeyVotes votes_;
};

/// Whether `scales` blocks of that size make up a side of a matrix, the last one perhaps in part.
inline bool divides_into(int64_t side, int64_t block, int64_t scales) {
  return block > 0 && side > 0 && (side - 1) / block + 1 == scales;
}

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
                   std::set<std::string>& reported, LintReporter& reporter);
/// Groups of compressed-tensors, key by key.
void lint_groups(const LintInput& input, const Promises& promises, const std::vector<CodedModule>& modules,
                 std::set<std::string>& reported, LintReporter& reporter);
/// Input scales.
void lint_inputs(const LintInput& input, const Promises& promises, const std::vector<CodedModule>& modules,
                 LintReporter& reporter);
/// What changes the meaning of codes, and floats where there must be codes.
void lint_meaning(const LintInput& input, const Promises& promises, const std::vector<CodedModule>& modules,
                  std::set<std::string>& reported, LintReporter& reporter);
/// Patterns, entries and groups that no module belongs to.
void lint_unused_patterns(const LintInput& input, const QuantizationSaid& said, LintReporter& reporter);
/// The KV cache.
void lint_cache(const LintInput& input, const QuantizationSaid& said, LintReporter& reporter);

}  // namespace twofour
