#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lib/lint/config/coded_modules.h"
#include "lib/source/config/configured_quantization.h"
#include "lib/source/dialects/configured_scheme.h"

namespace twofour {

/// The statements of a config about one module, and about the module's inputs.
struct Promise : ConfiguredFormat {
  InputPromise inputs = InputPromise::kUnknown;
};

/// A quantization config, and what it states about each module, by names and patterns alone.
struct Promises : ConfiguredQuantization {
  Promises(const ConfiguredQuantization& configured, const LintInput& input,
           const std::vector<CodedModule>& modules);

  std::vector<Promise> of;  ///< one promise for each module
};

/// True if the format of a module may be a result of the algorithm.
bool is_in(const CodedModule& module, const Algorithm& algorithm);

/// Returns a setting as text for a message; "none" if it is missing.
std::string shown_setting(const Json& value);

/// Votes of modules on the value that each key of a config should have.
class KeyVotes {
 public:
  /// Adds the vote of module `m`. `expected` is the value that would agree with the module. It is empty if
  /// `found`, the key's value, agrees.
  void add(const std::string& key, size_t m, std::string expected, std::string found);
  /// Calls f(key, expected, found, first, count) for each key that most modules contradict. `first` is the
  /// first module that expects the most frequent value, `count` the number of modules that contradict the
  /// key.
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
    std::map<std::string, Against> against;  ///< by expected value
  };
  std::map<std::string, Vote> votes_;
};

/// The input of checks that compare a config with modules, and the votes of modules on the config's keys.
class PromiseCheck {
 public:
  /// `reported` has the modules with findings. Each check adds its own modules.
  PromiseCheck(const LintInput& s, const Promises& p, const std::vector<CodedModule>& modules,
               std::set<std::string>& reported, LintReporter& reporter)
      : s_(s), p_(p), modules_(modules), reported_(reported), reporter_(reporter) {}

 protected:
  /// Reports a finding at a key, given by its path.
  template <class... Args>
  void add(const std::string& key, fmt::format_string<Args...> text, Args&&... args) {
    reporter_.add("config-format", s_.setting(key), text, std::forward<Args>(args)...);
  }
  /// Returns the path of a key.
  std::string key(const char* name) const { return p_.place + name; }
  /// Reports the keys that most modules contradict. Afterwards all modules count as reported.
  void report_votes();

  const LintInput& s_;
  const Promises& p_;
  const std::vector<CodedModule>& modules_;
  std::set<std::string>& reported_;
  LintReporter& reporter_;
  KeyVotes votes_;
};

/// True if `scales` blocks of `block` weights cover a side of a matrix. The last block may be partial.
inline bool divides_into(int64_t side, int64_t block, int64_t scales) {
  return block > 0 && side > 0 && (side - 1) / block + 1 == scales;
}

/// Compares the formats in a config with the stored formats, as far as the config alone states them. Adds
/// modules with findings to `reported`. Returns true if the config's method is right.
bool lint_promises(const LintInput& input, const ConfiguredQuantization& configured,
                   const std::vector<CodedModule>& modules, std::set<std::string>& reported,
                   LintReporter& reporter);

// Parts of lint_promises().

/// Checks the method and, for ModelOpt, the algorithm and block sizes. Returns true if the method is right.
/// If it is wrong, the config's other keys mean nothing.
bool lint_methods(const LintInput& input, const Promises& promises, const std::vector<CodedModule>& modules,
                  std::set<std::string>& reported, LintReporter& reporter);
/// Checks the keys of GPTQ and AWQ, and their exceptions for single modules.
void lint_integers(const LintInput& input, const Promises& promises, const std::vector<CodedModule>& modules,
                   std::set<std::string>& reported, LintReporter& reporter);
/// Checks the groups of compressed-tensors, key by key.
void lint_groups(const LintInput& input, const Promises& promises, const std::vector<CodedModule>& modules,
                 std::set<std::string>& reported, LintReporter& reporter);
/// Checks stored input scales against what the config states about inputs.
void lint_inputs(const LintInput& input, const Promises& promises, const std::vector<CodedModule>& modules,
                 LintReporter& reporter);
/// Checks settings that change the meaning of codes, and reports floats where the config promises codes.
void lint_meaning(const LintInput& input, const Promises& promises, const std::vector<CodedModule>& modules,
                  std::set<std::string>& reported, LintReporter& reporter);
/// Reports patterns, entries and groups that match no module.
void lint_unused_patterns(const LintInput& input, const ConfiguredQuantization& configured,
                          LintReporter& reporter);
/// Checks the config's statements about the KV cache.
void lint_cache(const LintInput& input, const ConfiguredQuantization& configured, LintReporter& reporter);

}  // namespace twofour
