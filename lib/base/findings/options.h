#pragma once
#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>

namespace twofour {

/// The author of a setting, who determines how messages spell it: input_scale in a recipe file, --input-scale
/// at the prompt.
enum class Author { kPrompt, kFile };

/// An option of the program as it is typed, by its name: "follow_links" is --follow-links.
class OptionName {
 public:
  template <size_t kSize>
  consteval OptionName(const char (&name)[kSize]) {  // NOLINT: a name stands for itself
    static_assert(kSize + 2 <= sizeof(text_));
    for (size_t i = 0; i < kSize; ++i) text_[i + 2] = name[i] == '_' ? '-' : name[i];
  }
  constexpr const char* text() const { return text_; }

 private:
  char text_[32] = {'-', '-'};
};

/// A setting as its author wrote it: `--exact` at the prompt, `exact` in a file. With a value it is `--exact
/// strict` or `exact: strict`.
std::string spelled(std::string_view key, Author author);
std::string spelled(std::string_view key, std::string_view value, Author author);

/// The options whose names or values appear in messages of lib, besides the settings of rules
/// (lib/recipe/settings). The program defines these options, and a test checks that it defines each of them.
namespace options {
inline constexpr OptionName kAgainst = "against", kAlso = "also", kAt = "at", kBits = "bits",
                            kBudget = "budget", kCache = "cache", kCacheSize = "cache_size",
                            kDialect = "dialect", kDonor = "donor", kExclude = "exclude",
                            kExperts = "experts", kExplain = "explain", kFailOn = "fail_on",
                            kFollowLinks = "follow_links", kForce = "force", kHtml = "html",
                            kInclude = "include", kJson = "json", kKeepStats = "keep_stats", kMask = "mask",
                            kMaxLoss = "max_loss", kMaxShardSize = "max_shard_size", kMenu = "menu",
                            kModules = "modules", kNoReadme = "no_readme", kProfile = "profile",
                            kResume = "resume", kRule = "rule", kSequential = "sequential", kSize = "size",
                            kStats = "stats", kStrictStats = "strict_stats", kTake = "take",
                            kTensor = "tensor", kText = "text", kTokenWeights = "token_weights",
                            kWriteBaseline = "write_baseline", kZeroPoints = "zero_points";
}  // namespace options

}  // namespace twofour

template <>
struct fmt::formatter<twofour::OptionName> : fmt::formatter<std::string_view> {
  template <class Context>
  auto format(const twofour::OptionName& option, Context& context) const {
    return fmt::formatter<std::string_view>::format(option.text(), context);
  }
};
