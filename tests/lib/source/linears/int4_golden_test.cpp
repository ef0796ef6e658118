#include <doctest/doctest.h>

#include <filesystem>

#include "lib/source/linears/linears.h"
#include "tests/support/weights/stored_int4.h"

namespace int4_golden_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

const fs::path kGolden = fs::path(TWOFOUR_GOLDEN_DIR) / "int4";

/// Holds each module of a checkpoint against the weights that its producer gives it. Returns their count.
size_t check_against_producer(const Checkpoint& c) {
  const auto modules = find_weight_modules(c);
  for (const Linear& m : modules) {
    const auto expected = c.find(m.name + ".expected");
    REQUIRE(expected);
    REQUIRE(c.tensors()[*expected].shape == std::vector{m.n, m.k});
    StoredTensor weights(DType::kF32, {m.n, m.k}, 1);
    c.read(*expected, 0, weights.bytes);
    check_values(c, m, [&](int64_t, int64_t n, int64_t k) { return weights.number(n * m.k + k); });
  }
  return modules.size();
}

}  // namespace

TEST_CASE("INT4 that the producers packed is read as they read it") {
  CHECK(check_against_producer(Checkpoint::open(kGolden / "compressed_tensors.safetensors")) == 4);
  CHECK(check_against_producer(Checkpoint::open(kGolden / "awq.safetensors")) == 2);
  CHECK(check_against_producer(Checkpoint::open(kGolden / "gptq.safetensors")) == 2);
}

}  // namespace int4_golden_test
