#include "formats/weight_dialect.h"

#include <doctest/doctest.h>

namespace weight_dialect_test {

using namespace twofour;

TEST_CASE("every format has a name of its own") {
  CHECK(weight_format_name(WeightFormat::kFloat) == std::string_view("floats"));
  CHECK(weight_format_name(WeightFormat::kFp8) == std::string_view("FP8"));
  CHECK(weight_format_name(WeightFormat::kMxfp4) == std::string_view("MXFP4"));
  CHECK(weight_format_name(WeightFormat::kNvfp4) == std::string_view("NVFP4"));
  CHECK(weight_format_name(WeightFormat::kInt4) == std::string_view("INT4"));
}

}  // namespace weight_dialect_test
