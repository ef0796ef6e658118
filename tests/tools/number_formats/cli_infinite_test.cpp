#include <doctest/doctest.h>

#include <cstring>
#include <string>

#include "lib/source/checkpoint/checkpoint.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/message.h"
#include "tests/support/outcome.h"
#include "tests/support/scratch.h"
#include "tests/support/weights/stored_weights.h"

// No writer writes infinities: what the new format cannot hold is refused, by its place, and nothing is left.

namespace cli_infinite_test {

using namespace twofour;

namespace {

TensorData scalar(const std::string& name, float value) {
  TensorData t{name, DType::kF32, {1}, std::vector<uint8_t>(sizeof(value))};
  std::memcpy(t.bytes.data(), &value, sizeof(value));
  return t;
}

/// Runs a conversion of some tensors and expects it to be refused by these words.
void check_refused(const Tensors& tensors, const std::vector<std::string>& options,
                   const std::string& words) {
  CAPTURE(words);
  const Scratch scratch;
  write_checkpoint(scratch / "c", {tensors},
                   R"({"num_experts": 2, "model_type": "qwen3_moe", "hidden_size": 32})");
  std::vector<std::string> command{"convert", (scratch / "c").string(), (scratch / "o").string()};
  command.insert(command.end(), options.begin(), options.end());
  const Outcome outcome = run_program(command);
  CHECK(outcome.code == 2);
  CHECK(contains(outcome.err, words));
  CHECK(!std::filesystem::exists(scratch / "o" / "twofour.json"));
}

const std::vector<std::string> kToBf16{"--to", "bf16"};

}  // namespace

TEST_CASE("weights that BF16 does not hold are refused") {
  Tensors fp8;
  fp8_weights({48, 32}, 1).add_to(fp8, "m.weight");
  fp8.back().bytes[17 * 32 + 5] = 0x7E;  // 448
  fp8.push_back(scalar("m.weight_scale", 1e37f));
  check_refused(fp8, kToBf16, "m.weight: expected finite weights within BF16, found");

  Tensors nvfp4;
  Nvfp4Matrix matrix = random_matrix(48, 32, 2, 1.0f);
  matrix.scales[9 * 2 + 1] = 0x7E;
  matrix.codes[(9 * 32 + 20) / 2] = 0x70;  // the odd k: 6
  add_modelopt(nvfp4, "m", matrix);
  nvfp4.pop_back();
  for (TensorData& t : nvfp4) CHECK(t.name != "m.weight_scale_2");
  nvfp4.push_back(scalar("m.weight_scale_2", 3e36f));
  check_refused(nvfp4, kToBf16,
                "m.weight_scale_2: expected a global scale with which all weights are finite");

  Tensors mxfp4;
  StoredTensor(DType::kU8, {16, 32}, 3).add_to(mxfp4, "m.weight_packed");
  StoredTensor(DType::kU8, {16, 2}, 4, 200).add_to(mxfp4, "m.weight_scale");
  mxfp4.back().bytes[7] = 254;
  mxfp4.front().bytes[3 * 32 + 16] = 0x77;
  check_refused(mxfp4, kToBf16, "m.weight_packed: expected finite weights within BF16, found");

  Tensors stacks = experts_stored_as("stack, k outer", "model.layers.0.mlp.experts", 2, 32, 32);
  for (TensorData& t : stacks) {
    if (!t.name.ends_with("gate_up_proj_weight_scale_2")) continue;
    for (size_t i = 0; i < t.bytes.size(); i += sizeof(float)) {
      const float large = 3.3e38f;
      std::memcpy(&t.bytes[i], &large, sizeof(large));
    }
  }
  check_refused(stacks, kToBf16, "weight_scale_2: expected a global scale with which all weights are finite");
}

TEST_CASE("a large global scale is no problem where block scales are small") {
  for (const char* layout : {"linears", "stack", "stack, k outer"}) {
    CAPTURE(layout);
    const std::string block = "model.layers.0.mlp.experts";
    Tensors tensors = experts_stored_as(layout, block, 2, 32, 32);
    for (TensorData& t : tensors) {
      const float large = 3e37f;
      if (t.name.ends_with("weight_scale")) t.bytes.assign(t.bytes.size(), 0x30);  // 0.5
      if (!t.name.ends_with("weight_scale_2")) continue;
      for (size_t i = 0; i < t.bytes.size(); i += sizeof(large))
        std::memcpy(&t.bytes[i], &large, sizeof(large));
    }
    const Scratch scratch;
    write_checkpoint(scratch / "c", {tensors},
                     R"({"num_experts": 2, "model_type": "qwen3_moe", "hidden_size": 32})");
    const Outcome outcome =
        run_program({"convert", (scratch / "c").string(), (scratch / "o").string(), "--to", "bf16"});
    CHECK_MESSAGE(outcome.code == 0, outcome.err);
    for (TensorData& t : tensors) {  // one block that is too large
      if (t.name.ends_with("weight_scale")) t.bytes[t.bytes.size() - 3] = 0x7E;
    }
    check_refused(tensors, kToBf16, "expected a global scale with which all weights are finite");
  }
}

TEST_CASE("the largest numbers that BF16 holds are written") {
  Tensors fp8{{"m.weight", DType::kF8E4M3, {1, 32}, std::vector<uint8_t>(32, 0x38)}};  // ones
  const float largest = 0x1.fe8p127f;  // rounds to the largest BF16
  fp8.push_back(scalar("m.weight_scale", largest));
  const Scratch scratch;
  write_checkpoint(scratch / "c", {fp8}, "{}");
  const Outcome outcome =
      run_program({"convert", (scratch / "c").string(), (scratch / "o").string(), "--to", "bf16"});
  REQUIRE_MESSAGE(outcome.code == 0, outcome.err);
  const Checkpoint written = Checkpoint::open(scratch / "o");
  std::vector<uint8_t> bytes(64);
  written.read(*written.find("m.weight"), 0, bytes);
  for (size_t i = 0; i < bytes.size(); i += 2) CHECK((bytes[i] == 0x7F && bytes[i + 1] == 0x7F));
  fp8.back() = scalar("m.weight_scale", 0x1.ffp127f);  // half a place above: infinity
  check_refused(fp8, kToBf16, "expected finite weights within BF16");
}

TEST_CASE("scales without a finite reciprocal are refused") {
  const auto with = [](const char* scale, float value) {
    Tensors tensors;
    for (const char* module : {"a", "b"}) add_modelopt(tensors, module, random_matrix(48, 32, 2, 0.5f));
    for (const char* module : {"a", "b"})
      tensors.push_back(scalar(std::string(module) + ".input_scale", 0.5f));
    for (TensorData& t : tensors) {
      if (t.name == scale) t = scalar(scale, value);
    }
    return tensors;
  };
  const std::vector<std::string> to{"--to", "nvfp4", "--dialect", "compressed-tensors"};
  for (const char* scale : {"a.weight_scale_2", "b.input_scale"})
    check_refused(with(scale, 1e-40f), to, std::string(scale) + ": expected a ");
}

TEST_CASE("weights that grow beyond BF16 by scales of powers of two are refused") {
  Tensors bf16{{"m.weight", DType::kBF16, {32, 32}, std::vector<uint8_t>(32 * 32 * 2)}};
  for (size_t i = 0; i < 64; i += 2) bf16[0].bytes[i] = 0x7E, bf16[0].bytes[i + 1] = 0x7F;  // 3.4e38
  for (const char* to : {"mxfp4", "mxfp8"}) {
    check_refused(bf16, {"--to", to}, "m.weight: expected weights that stay within BF16 in MXFP");
    for (size_t i = 1; i < 64; i += 2) bf16[0].bytes[i] = 0x7E;  // 8e37
    const Scratch scratch;
    write_checkpoint(scratch / "c", {bf16}, "{}");
    const Outcome outcome =
        run_program({"convert", (scratch / "c").string(), (scratch / "o").string(), "--to", to});
    CHECK_MESSAGE(outcome.code == 0, outcome.err);
    for (size_t i = 1; i < 64; i += 2) bf16[0].bytes[i] = 0x7F;
  }
  Tensors f32{{"m.weight", DType::kF32, {32, 32}, std::vector<uint8_t>(32 * 32 * 4)}};
  const float large = 3.4e38f;
  std::memcpy(f32[0].bytes.data(), &large, sizeof(large));
  for (const char* to : {"mxfp4", "mxfp8", "fp8"})
    check_refused(f32, {"--to", to}, "m.weight: expected finite weights within BF16, found 3.4e+38");
}

TEST_CASE("codes are not copied with a global scale that makes them infinite") {
  Tensors nvfp4;
  const std::string block = "model.layers.0.mlp.";
  for (const char* name : {"gate_proj", "up_proj", "down_proj"}) {
    add_modelopt(nvfp4, block + name, random_matrix(32, 32, 2, 1.0f));
    nvfp4.pop_back();
    nvfp4.push_back(scalar(block + name + ".weight_scale_2", 3e36f));
  }
  for (const char* to : {"v7", "v7-packed", "g8"})
    check_refused(nvfp4, {"--to", to},
                  "weight_scale_2: expected a global scale with which all weights are finite");
  for (const char* dialect : {"modelopt", "compressed-tensors"})
    check_refused(nvfp4, {"--to", "nvfp4", "--dialect", dialect}, "expected a global scale with which");
}

}  // namespace cli_infinite_test
