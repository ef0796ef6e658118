#include <doctest/doctest.h>

#include <cstdio>
#include <sstream>

#include "tests/support/device/device_experts.h"
#include "tests/support/models/runtime_layer.h"

namespace c_api_test {

using namespace twofour;

namespace {

/// The output of a program, and its exit status.
std::pair<std::string, int> output_of(const std::string& command) {
  FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe);
  std::string text;
  for (int c = std::fgetc(pipe); c != EOF; c = std::fgetc(pipe)) text += static_cast<char>(c);
  return {text, ::pclose(pipe)};
}

/// A program's command line, behind an emulator's where it needs one.
std::string line_of(std::initializer_list<const char*> words) {
  std::string line;
  for (const char* word : words) line += std::string(line.empty() ? "" : " ") + word;
  return line;
}

}  // namespace

TEST_CASE("a C program runs layers of every layout through libtwofour.so and learns what it does wrong") {
  for (const char* layout : {"v7", "v7-packed", "g8"}) {
    CAPTURE(layout);
    const ConvertedLayer made(layout, 5, 32, 48);
    const int64_t m = 6;
    const auto [text, status] = output_of(line_of({TWOFOUR_EMULATOR TWOFOUR_C_CLIENT}) + " " +
                                          made.path().string() + " 3 " + std::to_string(m));
    CHECK(status == 0);
    std::istringstream lines(text);
    std::string first;
    std::getline(lines, first);
    CHECK(first == std::string("model.layers.3.mlp.experts ") + layout + " 5 48 32 1");
    std::vector<float> got;
    for (float x; lines >> x;) got.push_back(x);

    // The tokens of tests/c_api/client.c.
    std::vector<float> hidden, weights;
    std::vector<int32_t> ids;
    uint32_t state = 1;
    for (int64_t i = 0; i < m * 48; ++i) {
      state = state * 1664525u + 1013904223u;
      hidden.push_back((static_cast<float>(state >> 8 & 2047) - 1024.0f) / 512.0f);
    }
    for (int32_t i = 0; i < 2 * m; ++i) {
      ids.push_back((7 * i + i / 2) % 5);
      weights.push_back(1.0f / static_cast<float>(1 + i % 3));
    }
    const MoeInput input{m, 48, 2, hidden, ids, weights, {}, false, 2.0};
    CHECK(relative_error(got, moe_reference(input, made.w13(), made.w2())) < 2e-6);
  }
}

TEST_CASE("a C program calls commands, stops one, and reads values and bytes") {
  const Scratch scratch;
  TensorData line{"line", DType::kF32, {3}, {}};
  for (const float value : {1.5f, -2.0f, 8.0f}) {
    const auto* bytes = reinterpret_cast<const uint8_t*>(&value);
    line.bytes.insert(line.bytes.end(), bytes, bytes + sizeof(float));
  }
  write_checkpoint(scratch / "c", {{line}});
  const auto [text, status] =
      output_of(line_of({TWOFOUR_EMULATOR TWOFOUR_C_COMMANDS}) + " " + (scratch / "c").string() + " line 3");
  CHECK(status == 0);
  CHECK(text.starts_with("{\n  \"schema_version\": 1,"));
  const std::string want =
      "\n130 interrupted\n2 unknown option --no-such-option\nSee twofour lint --help.\n1\n1.5 -2 8 0\n"
      "line: expected room for 3 values, found 4\n";
  CHECK_MESSAGE(text.ends_with(want), text);
}

}  // namespace c_api_test
