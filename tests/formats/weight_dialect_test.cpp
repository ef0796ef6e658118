#include "formats/weight_dialect.h"

#include <doctest/doctest.h>

namespace weight_dialect_test {

using namespace twofour;

TEST_CASE("every format has a name of its own") {
  CHECK(WeightFormat::kFloat->name == std::string_view("floats"));
  CHECK(WeightFormat::kFp8->name == std::string_view("FP8"));
  CHECK(WeightFormat::kMxfp4->name == std::string_view("MXFP4"));
  CHECK(WeightFormat::kNvfp4->name == std::string_view("NVFP4"));
  CHECK(WeightFormat::kInt4->name == std::string_view("INT4"));
}

}  // namespace weight_dialect_test
