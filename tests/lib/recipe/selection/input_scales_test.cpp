#include "lib/recipe/selection/input_scales.h"

#include <doctest/doctest.h>

#include <bit>
#include <cstring>
#include <limits>

#include "tests/support/checkpoint_builder.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace amax_file_test {

using namespace twofour;

namespace {

TensorData amax(const std::string& name, float value, const std::vector<int64_t>& shape = {}) {
  TensorData t{name, DType::kF32, shape, std::vector<uint8_t>(sizeof(value))};
  std::memcpy(t.bytes.data(), &value, sizeof(value));
  return t;
}

std::string refusal(const Tensors& tensors) {
  const Scratch scratch;
  write_safetensors(scratch / "amax.safetensors", tensors);
  const std::string path = scratch / "amax.safetensors";
  std::string message = message_of([&] { read_amax_file(path); });
  return message;
}

}  // namespace

TEST_CASE("a file of largest magnitudes is read by the modules' names") {
  const Scratch scratch;
  write_safetensors(scratch / "amax.safetensors", {amax("b.amax", 2688), amax("a.x.amax", 0.1f)});
  const FixedGlobalScales read = read_amax_file(scratch / "amax.safetensors");
  REQUIRE(read.scales.size() == 2);
  CHECK(read.find("a.x")->bits == std::bit_cast<uint32_t>(0.1f));
  CHECK(read.find("b")->bits == std::bit_cast<uint32_t>(2688.0f));
}

TEST_CASE("files of anything else are refused, with the tensor and what it holds") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), inf = std::numeric_limits<float>::infinity();
  for (const auto& [value, found] : {std::pair{nan, "nan"},
                                     {inf, "inf"},
                                     {-inf, "-inf"},
                                     {0.0f, "0"},
                                     {-0.0f, "-0"},
                                     {-3.0f, "-3"},
                                     {1e-38f, "1e-38"}}) {
    CAPTURE(value);
    CHECK(
        contains(refusal({amax("good.amax", 1), amax("m.amax", value)}),
                 "m.amax: expected the largest magnitude of inputs, positive and finite in float32, found " +
                     std::string(found)));
  }
  CHECK(refusal({amax("m.amax", 1, {1})}) == "");
  CHECK(contains(refusal({{"m.amax", DType::kF32, {2}, std::vector<uint8_t>(8)}}),
                 "m.amax: expected F32 [] or [1], found F32 [2]"));
  CHECK(contains(refusal({{"m.amax", DType::kBF16, {}, {0x80, 0x3F}}}),
                 "m.amax: expected F32 [] or [1], found BF16 []"));
  for (const char* name : {"m.input_scale", ".amax", "amax"}) {
    CAPTURE(name);
    CHECK(contains(
        refusal({amax("good.amax", 1), amax(name, 1)}),
        std::string(name) + ": expected only tensors M.amax with the name M of a module, found another"));
  }
  CHECK(contains(refusal({}), "expected "));
  CHECK(
      contains(message_of([] { read_amax_file("/nowhere/amax.safetensors"); }), "/nowhere/amax.safetensors"));
}

}  // namespace amax_file_test
