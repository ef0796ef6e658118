#include "lib/write/transform/open_to_convert.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/error.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "lib/write/transform/encoder.h"

namespace twofour {
namespace {

bool holds_zero_points(const TensorInfo& t) {
  return t.dtype == DType::kI32 && (t.name.ends_with(".qzeros") || t.name.ends_with(".weight_zero_point"));
}

}  // namespace

MakeRowQuantizer row_encoders(const Compute& compute) {
  return [compute](const Checkpoint& source, int threads) {
    Compute own = compute;
    own.threads = std::min(threads, kSolverThreads);
    return std::make_unique<Encoder>(Worker(source, own));
  };
}

QuantizedSource open_to_pack(const std::filesystem::path& path, const Recipe& recipe, Io io,
                             const MemoryLimits& limits, const Compute& compute) {
  Checkpoint source = open_source(path, ReadPath::kFast, {}, io, recipe.zero_points);
  const auto tensors = source.tensors();
  if (recipe.zero_points != ZeroPoints::kAsStated &&
      std::none_of(tensors.begin(), tensors.end(), holds_zero_points)) {
    throw Error(fmt::format("{}: expected INT4 with zero points, which are read as {}, found none",
                            path.string(), zero_points_word(recipe.zero_points)));
  }
  return open_quantized(std::move(source), recipe, row_encoders(compute), limits, compute.threads);
}

Checkpoint open_to_convert(const std::filesystem::path& path, const Recipe& recipe, Io io,
                           const MemoryLimits& limits, const Compute& compute) {
  return open_to_pack(path, recipe, io, limits, compute).shown;
}

}  // namespace twofour
