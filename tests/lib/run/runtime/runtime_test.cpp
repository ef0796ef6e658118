#include "lib/run/runtime/artifact.h"

#include <fmt/format.h>

#include <filesystem>

#include "kernels/device/device.h"
#include "lib/base/io/file.h"
#include "tests/support/device/device_experts.h"
#include "tests/support/message.h"
#include "tests/support/models/runtime_layer.h"

namespace runtime_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

/// Float32 sums of some hundred products.
constexpr double kTolerance = 2e-6;

void check_run(const ConvertedLayer& made, const Tokens& tokens, const LayerOptions& options = {}) {
  const RuntimeArtifact artifact = RuntimeArtifact::open(made.path());
  const RuntimeLayer layer = artifact.load(0, Device::cpu, options);
  const MoeInput input = input_of(tokens, options);
  const auto want = moe_reference(input, made.w13(), made.w2());
  CHECK(relative_error(layer.run(input).out, want) < kTolerance);
}

/// The bytes of a tensor in the artifact's shard, to be damaged.
struct StoredTensor {
  uint64_t offset, bytes;
  StoredTensor(const ConvertedLayer& made, const std::string& suffix) {
    const Checkpoint c = Checkpoint::open(made.path());
    const auto at = c.find(std::string(ConvertedLayer::kName) + suffix);
    REQUIRE(at);
    offset = c.shard_of(*at).data_begin + c.tensors()[*at].begin;
    bytes = c.tensors()[*at].bytes();
  }
};

void overwrite(const fs::path& file, uint64_t offset, uint8_t byte) {
  FILE* f = std::fopen(file.c_str(), "r+b");
  REQUIRE(f);
  std::fseek(f, static_cast<long>(offset), SEEK_SET);
  std::fputc(byte, f);
  std::fclose(f);
}

}  // namespace

TEST_CASE("an artifact tells its layers, and finds them by prefix, block and number") {
  for (const char* layout : kLayouts) {
    CAPTURE(layout);
    const ConvertedLayer made(layout, 3, 16, 32);
    const RuntimeArtifact artifact = RuntimeArtifact::open(made.path());
    REQUIRE(artifact.layers().size() == 1);
    const LayerInfo& info = artifact.layers()[0];
    CHECK(info.name == ConvertedLayer::kName);
    CHECK(info.layout == layout);
    CHECK(info.e == 3);
    CHECK(info.h == 32);
    CHECK(info.i == 16);
    CHECK(info.gated);
    uint64_t bytes = 0;
    for (const auto& [name, tensor] : read_tensors(made.path()))
      if (name.find(".w13_") != name.npos || name.find(".w2_") != name.npos) bytes += tensor.bytes.size();
    CHECK(info.bytes == bytes);
    for (const char* name : {"model.layers.3.mlp.experts", "model.layers.3.mlp", "model", "3"})
      CHECK(artifact.find(name) == std::vector<size_t>{0});
    for (const char* name : {"", "2", "33", "model.layers", ".", "layers", "model.layers.3.ml", "experts"})
      CHECK(artifact.find(name).size() == (std::string_view(name) == "model.layers" ? 1 : 0));
  }
}

TEST_CASE("a layer on the CPU gives the reference's output, from the mapped file of every layout") {
  for (const char* layout : kLayouts) {
    CAPTURE(layout);
    const ConvertedLayer made(layout, 5, 48, 80);
    for (const int64_t m : {1, 2, 33}) check_run(made, draw_tokens(m, 80, 5, 2, 7));
    LayerOptions options;
    options.limit = 0.5f;
    check_run(made, draw_tokens(3, 80, 5, 3, 8), options);
    options.weight_on_input = true;
    options.expert_map = {4, -1, 0, 1, -1, 2, 3, -1};
    Tokens tokens = draw_tokens(9, 80, 8, 2, 9);
    check_run(made, tokens, options);
  }
  check_run(ConvertedLayer("v7", 4, 16, 48, false), draw_tokens(4, 48, 4, 2, 3));
  check_run(ConvertedLayer("v7", 1, 16, 16), draw_tokens(4, 16, 1, 1, 3));
}

TEST_CASE("no tokens give no output") {
  const ConvertedLayer made("v7", 2, 16, 16);
  const RuntimeArtifact artifact = RuntimeArtifact::open(made.path());
  const RuntimeLayer layer = artifact.load(0, Device::cpu);
  CHECK(layer.run(draw_tokens(0, 16, 2, 1, 1).input()).out.empty());
  CHECK(layer.workspace_bytes(4, 2) == 0);
  CHECK(layer.device_bytes() == 0);
}

TEST_CASE("a layer outlives the artifact that it came from") {
  const ConvertedLayer made("g8", 3, 16, 32);
  auto artifact = std::make_unique<RuntimeArtifact>(RuntimeArtifact::open(made.path()));
  const RuntimeLayer layer = artifact->load(0, Device::cpu);
  artifact.reset();
  const Tokens tokens = draw_tokens(2, 32, 3, 2, 1);
  CHECK(relative_error(layer.run(tokens.input()).out, moe_reference(tokens.input(), made.w13(), made.w2())) <
        kTolerance);
}

TEST_CASE("tokens that do not fit the layer are refused") {
  const ConvertedLayer made("v7", 3, 16, 32);
  const RuntimeLayer layer = RuntimeArtifact::open(made.path()).load(0, Device::cpu);
  Tokens tokens = draw_tokens(2, 32, 3, 2, 1);
  tokens.ids[3] = 3;
  CHECK(message_of([&] { layer.run(tokens.input()); }) ==
        "topk_ids[1, 1]: expected an expert from 0 to 2, found 3");
  CHECK(message_of([&] { layer.run(draw_tokens(2, 48, 3, 2, 1).input()); }).find("expected hidden [M, 32]") !=
        std::string::npos);
  MoeInput limited = draw_tokens(2, 32, 3, 2, 1).input();
  limited.limit = 1;
  CHECK(message_of([&] { layer.run(limited); }).find("from loading, found others") != std::string::npos);
}

TEST_CASE("options that no layer can have are refused") {
  const ConvertedLayer made("v7", 3, 16, 32);
  const RuntimeArtifact artifact = RuntimeArtifact::open(made.path());
  CHECK(message_of([&] {
          artifact.load(0, Device::cpu, {{0, 3}});
        }).find("expert_map[1]: expected -1 to 2, found 3") != std::string::npos);
  for (const float limit : {-1.0f, std::nanf(""), std::numeric_limits<float>::infinity()})
    CHECK(message_of([&] {
            artifact.load(0, Device::cpu, {{}, false, limit});
          }).find("a limit of 0") != std::string::npos);
  CHECK(message_of([&] { artifact.load(1, Device::cpu); }) == "expected a layer from 0 to 0, found 1");
}

TEST_CASE("a layer with terms that no kernel applies is refused when it is loaded") {
  const ConvertedLayer made("v7", 3, 16, 32);
  for (const char* term : {"1.gate_proj.bias", "2.down_proj.bias"}) {
    CAPTURE(term);
    const Scratch scratch;
    const std::string name = std::string(ConvertedLayer::kName) + "." + term;
    Tensors tensors;
    for (const auto& [of, t] : read_tensors(made.source()))
      tensors.push_back({of, t.dtype, t.shape, t.bytes});
    add_bf16(tensors, name, {16});
    write_checkpoint(scratch / "source", {tensors}, R"({"model_type": "mixtral"})");
    convert(scratch / "source", scratch / "artifact");
    const RuntimeArtifact artifact = RuntimeArtifact::open(scratch / "artifact");
    const std::string message = message_of([&] { artifact.load(0, Device::cpu); });
    CHECK_MESSAGE(message.find(name + ": expected linears with weights only") != std::string::npos, message);
  }
  const Scratch scratch;
  write_checkpoint(scratch / "source",
                   {experts_stored_as("stack, interleaved", ConvertedLayer::kName, 3, 16, 32)});
  convert(scratch / "source", scratch / "artifact");
  const RuntimeArtifact artifact = RuntimeArtifact::open(scratch / "artifact");
  const std::string message = message_of([&] { artifact.load(0, Device::cpu); });
  CHECK_MESSAGE(message.find(".gate_up_proj_bias: expected linears with weights only") != std::string::npos,
                message);
}

TEST_CASE("a layer of another activation is refused when it is loaded") {
  const auto refusal = [](const std::string& config) {
    const ConvertedLayer made("v7", 3, 16, 32, true, config);
    const RuntimeArtifact artifact = RuntimeArtifact::open(made.path());
    return message_of([&] { artifact.load(0, Device::cpu); });
  };
  for (const auto& [config, message] :
       {std::pair{R"({"hidden_act": "gelu"})", "config.json: hidden_act: expected silu, found \"gelu\""},
        {R"({"text_config": {"hidden_activation": "gelu"}})",
         "config.json: hidden_activation: expected silu"},
        {R"({"llm_config": {"hidden_act": "gelu"}})", "config.json: hidden_act: expected silu"},
        {R"({"hidden_act": "silu", "language_config": {"hidden_act": "gelu"}})",
         "config.json: hidden_act: expected silu"},
        {R"({"swiglu_alpha": 1.702, "swiglu_limit": 7.0})", "config.json: swiglu_alpha: expected 1, found"},
        {R"({"model_type": "gpt_oss", "hidden_act": "silu"})", "found \"gpt_oss\""},
        {R"({"model_type": "x", "text_config": {"model_type": "gpt_oss"}})", "found \"gpt_oss\""}}) {
    const std::string found = refusal(config);
    CHECK_MESSAGE(found.find(message) != std::string::npos, found);
  }
  CHECK(refusal(R"({"model_type": "mixtral", "hidden_act": "silu", "swiglu_alpha": 1.0})").empty());
}

TEST_CASE(
    "the language model's limit is found where its config is nested, and refused where it is no float") {
  for (const char* config : {R"({"swiglu_limit": 7.0})", R"({"llm_config": {"swiglu_limit": 7.0}})",
                             R"({"swiglu_limit": null, "language_config": {"swiglu_limit": 7}})"}) {
    const ConvertedLayer made("v7", 3, 16, 32, true, config);
    CHECK(RuntimeArtifact::open(made.path()).swiglu_limit() == 7.0f);
  }
  for (const auto& [config, message] :
       {std::pair{R"({"swiglu_limit": 7.0, "llm_config": {"swiglu_limit": 8.0}})", "expected one value"},
        {R"({"swiglu_limit": 1e39})", "expected a finite float32 number not below 0"},
        {R"({"swiglu_limit": 1e-60})", "expected a finite float32 number not below 0"},
        {R"({"swiglu_limit": -1})", "expected a finite float32 number not below 0"}}) {
    const ConvertedLayer made("v7", 3, 16, 32, true, config);
    const RuntimeArtifact artifact = RuntimeArtifact::open(made.path());
    contains(message_of([&] { artifact.swiglu_limit(); }), fmt::format("swiglu_limit: {}", message));
  }
}

TEST_CASE("what a kernel must not meet is refused when the layer is loaded") {
  struct Damage {
    const char *layout, *tensor;
    uint64_t at;  ///< from the tensor's begin
    uint8_t byte;
    const char* message;
  };
  // v7-packed of w2 [3, 16 / 8, 4 * 32]: metadata at 64 of a row, scales at 96.
  for (const Damage& d :
       {Damage{"v7", ".w13_meta", 5, 0x4F,
               "w13_meta: expert 0, row 0, column 5: expected two ascending positions"},
        {"v7", ".w2_meta", 3 * 64 - 1, 0x04, "w2_meta: expert 2, row 1, column 31: expected two ascending"},
        {"v7", ".w2_scale", 32, 0x7F, "w2_scale: expert 1, row 0, column 0: expected a block scale"},
        {"v7-packed", ".w2_packed", 128 + 64, 0x00,
         "w2_packed: expert 0, row 1, column 64: expected two ascending"},
        {"v7-packed", ".w2_packed", 256 + 127, 0x80,
         "w2_packed: expert 1, row 0, column 127: expected a block"},
        {"g8", ".w13_scale", 16, 0xFF, "w13_scale: expert 0, row 4, column 0: expected a block scale"}}) {
    CAPTURE(d.message);
    const ConvertedLayer made(d.layout, 3, 16, 32);
    const StoredTensor tensor(made, d.tensor);
    REQUIRE(d.at < tensor.bytes);
    overwrite(made.shard(), tensor.offset + d.at, d.byte);
    const RuntimeArtifact artifact = RuntimeArtifact::open(made.path());
    const std::string message = message_of([&] { artifact.load(0, Device::cpu); });
    CHECK_MESSAGE(message.find(d.message) != std::string::npos, message);
  }
}

TEST_CASE("all bytes that may be metadata or scales are distinguished from those that may not") {
  for (unsigned byte = 0; byte < 256; ++byte) {
    const ConvertedLayer* made = nullptr;
    static const ConvertedLayer layer("v7", 1, 16, 16);
    made = &layer;
    const StoredTensor meta(*made, ".w13_meta"), scale(*made, ".w13_scale");
    const std::string whole = read_text(made->shard());
    const auto loads = [&](const StoredTensor& tensor) {
      overwrite(made->shard(), tensor.offset, static_cast<uint8_t>(byte));
      const bool loaded =
          message_of([&] { RuntimeArtifact::open(made->path()).load(0, Device::cpu); }).empty();
      overwrite(made->shard(), tensor.offset, static_cast<uint8_t>(whole[tensor.offset]));
      return loaded;
    };
    CAPTURE(byte);
    CHECK(loads(meta) == (is_legal_meta(byte & 15) && is_legal_meta(byte >> 4)));
    CHECK(loads(scale) == e4m3_is_block_scale(byte));
  }
}

TEST_CASE("a file that was cut or written to since it was opened is an error, not a signal") {
  for (const char* layout : kLayouts) {
    const ConvertedLayer made(layout, 3, 16, 32);
    const RuntimeArtifact artifact = RuntimeArtifact::open(made.path());
    const RuntimeLayer layer = artifact.load(0, Device::cpu);
    const Tokens tokens = draw_tokens(2, 32, 3, 2, 1);
    layer.run(tokens.input());
    fs::resize_file(made.shard(), 8);
    CHECK(message_of([&] { layer.run(tokens.input()); }).find("does not change while being read") !=
          std::string::npos);
    CHECK(message_of([&] { artifact.load(0, Device::cpu); }) != "");
  }
}

TEST_CASE("what is no artifact in a layout is refused") {
  const ConvertedLayer made("v7", 2, 16, 16);
  CHECK(message_of([&] { RuntimeArtifact::open(made.source()); }).find("expected an artifact in v7") !=
        std::string::npos);
  CHECK(message_of([&] { RuntimeArtifact::open(made.shard()); }).find("expected an artifact in v7") !=
        std::string::npos);
  fs::remove(made.path() / "twofour.json");
  CHECK(message_of([&] { RuntimeArtifact::open(made.path()); }).find("expected twofour.json") !=
        std::string::npos);
}

TEST_CASE("without a CUDA device one is not found, in one line") {
  if (cuda_device()) return;
  const ConvertedLayer made("v7", 2, 16, 16);
  CHECK(message_of([&] { RuntimeArtifact::open(made.path()).load(0, Device::cuda); }) ==
        fmt::format("{}: expected a CUDA device, found none ({})", ConvertedLayer::kName, no_cuda_reason()));
}

}  // namespace runtime_test
