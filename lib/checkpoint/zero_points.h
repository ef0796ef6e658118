#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "formats/json.h"

namespace twofour {

/// How the zero points of INT4 are read.
enum class ZeroPoints {
  kAsStated,   ///< by the config's format; stored ones that the config contradicts are refused
  kStored,     ///< by the config's format, whatever the config says of them
  kSymmetric,  ///< 8, whatever is stored
  kV2,         ///< as they are stored, without the 1 that GPTQ's first version adds
};
/// "stored", "symmetric", "v2": the words of all but kAsStated, which has none.
std::span<const std::string_view> zero_points_words();
/// "" of kAsStated.
std::string_view zero_points_word(ZeroPoints zero_points);
/// kAsStated of an empty word. Throws Error on one that is not known.
ZeroPoints parse_zero_points(std::string_view word);

/// What a quantization entry says that makes all zero points of a module 8, as it is written there: "sym:
/// true" (GPTQ, AutoRound), "zero_point: false" (AWQ), "symmetric: true" (the module's group of
/// compressed-tensors, also where it does not say it). Empty: it says nothing of the kind. Exceptions for
/// single modules count: GPTQModel's "dynamic", AutoRound's "extra_config".
class StatedSymmetry {
 public:
  explicit StatedSymmetry(Json quantization);
  StatedSymmetry(StatedSymmetry&&) noexcept;
  StatedSymmetry& operator=(StatedSymmetry&&) noexcept;
  ~StatedSymmetry();
  std::string_view find(const std::string& module) const;
  /// What a module's group of compressed-tensors says of weights; null: it has no group.
  const Json& group_weights(const std::string& module) const;

 private:
  struct Groups;
  std::unique_ptr<const Json> words_;  ///< which the groups point into
  std::unique_ptr<Groups> groups_;
};

}  // namespace twofour
