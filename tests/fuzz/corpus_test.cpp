#include <doctest/doctest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "tests/fuzz/fuzz.h"

namespace corpus_test {

using namespace twofour;

namespace {

struct Target {
  const char* name;
  void (*run)(const uint8_t*, size_t);
};
constexpr Target kTargets[] = {
    {"safetensors", fuzz_safetensors}, {"json", fuzz_json},          {"index", fuzz_index},
    {"config", fuzz_config},           {"manifest", fuzz_manifest},  {"dialect", fuzz_dialect},
    {"layouts", fuzz_layouts},         {"task", fuzz_task},          {"recipe", fuzz_recipe},
    {"statistics", fuzz_statistics},   {"tokenizer", fuzz_tokenizer}};

}  // namespace

TEST_CASE("every input of the corpus, and every beginning of it, is sound or an Error") {
  for (const Target& target : kTargets) {
    size_t files = 0;
    for (const auto& entry :
         std::filesystem::directory_iterator(std::string(TWOFOUR_CORPUS_DIR "/") + target.name)) {
      CAPTURE(entry.path().string());
      std::ifstream file(entry.path(), std::ios::binary);
      const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
      const size_t step = bytes.size() / 128 + 1;
      for (size_t size = 0;; size = std::min(size + step, bytes.size())) {
        CAPTURE(size);
        // A copy of its own, so that a sanitizer sees reading behind its end.
        const std::vector<uint8_t> input(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(size));
        CHECK_NOTHROW(target.run(input.data(), input.size()));
        if (size == bytes.size()) break;
      }
      ++files;
    }
    CAPTURE(target.name);
    CHECK(files >= 2);
  }
}

}  // namespace corpus_test
