#include <doctest/doctest.h>

#include <random>
#include <string>

#include "formats/json.h"
#include "lib/base/io/hash.h"

namespace sealed_object_test {

using namespace twofour;

TEST_CASE("a sealed object is JSON with its entries, and any bit or cut breaks its seal") {
  std::mt19937 random(3);
  for (int trial = 0; trial < 20; ++trial) {
    Json json = {{"a", trial}};
    for (auto i = random() % 6; i > 0; --i) json["k" + std::to_string(i)] = {random(), "text \" }"};
    const std::string sealed = seal_object(json.dump());
    REQUIRE(is_sealed_object(sealed));
    Json read = parse_json("sealed", sealed);
    CHECK(read.contains("xxh3_128"));
    read.erase("xxh3_128");
    CHECK(read == json);
    for (size_t i = 0; i < sealed.size(); ++i) {
      CHECK_FALSE(is_sealed_object(sealed.substr(0, i)));
      for (int bit = 0; bit < 8; ++bit) {
        std::string damaged = sealed;
        damaged[i] = static_cast<char>(damaged[i] ^ (1 << bit));
        if (is_sealed_object(damaged)) FAIL("byte " << i << ", bit " << bit);
      }
    }
    CHECK_FALSE(is_sealed_object(sealed + " "));
  }
  CHECK_FALSE(is_sealed_object(""));
  CHECK_FALSE(is_sealed_object("{}"));
  CHECK_FALSE(is_sealed_object("{\"a\": 1}"));
}

}  // namespace sealed_object_test
