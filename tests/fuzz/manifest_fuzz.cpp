#include <fstream>

#include "lib/recipe/artifact/manifest.h"
#include "tests/fuzz/fuzz.h"
#include "tests/support/scratch.h"

using namespace twofour;

void twofour::fuzz_manifest(const uint8_t* data, size_t size) {
  static const Scratch scratch;
  const std::filesystem::path path = scratch / "twofour.json";
  std::ofstream(path, std::ios::binary | std::ios::trunc) << text_of(data, size);
  expect_error_at_most([&] { recipe_to_json(read_manifest(path, 1000).recipe); });
}
