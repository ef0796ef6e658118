#include "lib/jobs/compress/token_weights.h"

#include <fmt/format.h>

#include <cmath>
#include <string_view>
#include <utility>

#include "formats/error.h"

namespace twofour {
namespace {

constexpr std::string_view kSuffix = ".token_weights";

}  // namespace

TokenWeights TokenWeights::open(const std::filesystem::path& path, int64_t tokens,
                                const std::set<std::string>& linears) {
  TokenWeights made(Checkpoint::open(path));
  for (size_t i = 0; i < made.file_.tensors().size(); ++i) {
    const TensorInfo& t = made.file_.tensors()[i];
    const bool fits = t.name.ends_with(kSuffix) && t.dtype == DType::kF32 && t.shape.size() == 2 &&
                      t.bytes() == static_cast<uint64_t>(tokens) * sizeof(float);
    if (!fits) {
      throw Error(fmt::format("{}: expected M{} F32 [windows, length] of the {} tokens, found {}",
                              made.file_.where(i), kSuffix, tokens, describe(t.dtype, t.shape)));
    }
    made.tensors_[t.name.substr(0, t.name.size() - kSuffix.size())] = i;
  }
  for (const std::string& linear : linears) {
    if (!made.tensors_.contains(linear))
      throw Error(fmt::format("{}: expected {}{}, found none", path.string(), linear, kSuffix));
  }
  return made;
}

std::vector<float> TokenWeights::read(const std::string& linear) const {
  const size_t tensor = tensors_.at(linear);
  std::vector<float> weights(file_.tensors()[tensor].bytes() / sizeof(float));
  file_.read(tensor, 0, {reinterpret_cast<uint8_t*>(weights.data()), weights.size() * sizeof(float)});
  for (size_t i = 0; i < weights.size(); ++i) {
    if (std::isfinite(weights[i]) && weights[i] >= 0) continue;
    throw Error(fmt::format("{}: token {}: expected a finite number, 0 or more, found {}",
                            file_.where(tensor), i, weights[i]));
  }
  return weights;
}

}  // namespace twofour
