#include "lib/run/runtime/artifact.h"

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "formats/error.h"
#include "kernels/device/device_memory.h"
#include "lib/run/runtime/tokens.h"
#include "tests/support/device/device.h"
#include "tests/support/device/device_experts.h"
#include "tests/support/message.h"
#include "tests/support/models/runtime_layer.h"

namespace runtime_test {

using namespace twofour;
using cuda::DeviceMemory;
using cuda::Float;

namespace {

constexpr Float kTypes[] = {Float::f32, Float::bf16, Float::f16};

/// Numbers of `type` between which the layer's output lies from the reference: FP16 takes hidden and, in 2:4,
/// what is between the multiplications; g8 keeps that in BF16.
double bound(const std::string& layout, Float type) {
  return tolerance(type, 3) + (layout == "g8" ? 0x1p-8 : 0.0);
}

Tokens rounded(Tokens tokens, Float type) {
  tokens.hidden = from_float_bytes(to_float_bytes(tokens.hidden, type), type);
  return tokens;
}

void check_run(const ConvertedLayer& made, const Tokens& drawn, Float type,
               const LayerOptions& options = {}) {
  CAPTURE(made.layout);
  CAPTURE(static_cast<int>(type));
  CAPTURE(drawn.m);
  const Tokens tokens = rounded(drawn, type);
  const RuntimeArtifact artifact = RuntimeArtifact::open(made.path());
  const MoeInput input = input_of(tokens, options);
  const auto want = moe_reference(input, made.w13(), made.w2());
  const RuntimeLayer layer = artifact.load(0, Device::cuda, options);
  CHECK(layer.device() == Device::cuda);
  CHECK(layer.device_bytes() == artifact.device_bytes(0, options));
  CHECK(layer.device_bytes() >= layer.info().bytes);
  const LayerRun run = layer.run(input, type);
  CHECK(relative_error(run.out, want) < bound(made.layout, type));
  CHECK(run.seconds > 0);
  CHECK(layer.run(input, type, true).out == run.out);
  const auto cpu = artifact.load(0, Device::cpu, options).run(input, type).out;
  CHECK(relative_error(run.out, std::vector<double>(cpu.begin(), cpu.end())) < 2 * bound(made.layout, type));
}

}  // namespace

TEST_CASE("a layer loaded onto the device gives the reference's output, in every layout and type") {
  if (no_gpu()) return;
  for (const char* layout : kLayouts) {
    const ConvertedLayer made(layout, 5, 48, 80);
    for (const Float type : kTypes)
      for (const int64_t m : {1, 2, 33}) check_run(made, draw_tokens(m, 80, 5, 2, 7), type);
    // More tokens than are worked on at a time.
    check_run(made, draw_tokens(1100, 80, 5, 2, 7), Float::bf16);
    LayerOptions options;
    options.limit = 0.5f;
    check_run(made, draw_tokens(3, 80, 5, 3, 8), Float::f32, options);
    options.expert_map = {4, -1, 0, 1, -1, 2, 3, -1};
    check_run(made, draw_tokens(9, 80, 8, 2, 9), Float::f32, options);
    options.weight_on_input = true;
    check_run(made, draw_tokens(9, 80, 8, 2, 9), Float::f32, options);
  }
  check_run(ConvertedLayer("v7", 4, 16, 48, false), draw_tokens(4, 48, 4, 2, 3), Float::f32);
  for (const char* layout : kLayouts)
    check_run(ConvertedLayer(layout, 1, 16, 16), draw_tokens(4, 16, 1, 1, 3), Float::f32);
}

TEST_CASE("a layer larger than the staging buffers arrives whole") {
  if (no_gpu()) return;
  for (const char* layout : kLayouts) {
    const ConvertedLayer made(layout, 14, 1024, 2048);
    const RuntimeArtifact artifact = RuntimeArtifact::open(made.path());
    REQUIRE(artifact.layers()[0].bytes > RuntimeArtifact::kStagingBytes);
    const Tokens tokens = draw_tokens(12, 2048, 14, 2, 4);
    const auto cpu = artifact.load(0, Device::cpu).run(tokens.input()).out;
    const auto gpu = artifact.load(0, Device::cuda).run(tokens.input()).out;
    CHECK(relative_error(gpu, std::vector<double>(cpu.begin(), cpu.end())) < 2 * bound(layout, Float::f32));
  }
}

TEST_CASE("a loaded layer is captured in a graph and replayed with other tokens") {
  if (no_gpu()) return;
  for (const char* layout : kLayouts) {
    for (const int64_t m : {1, 7}) {
      const ConvertedLayer made(layout, 6, 64, 128);
      const RuntimeLayer layer = RuntimeArtifact::open(made.path()).load(0, Device::cuda);
      const cuda::DeviceStream stream;
      const auto count = static_cast<size_t>(m * 128);
      DeviceMemory hidden(count * 4), ids(static_cast<size_t>(m) * 12), weights(static_cast<size_t>(m) * 12),
          out(count * 4), workspace(layer.workspace_bytes(m, 3)), error(4);
      cuda::MoeTokens tokens;
      tokens.m = m, tokens.topk = 3, tokens.type = Float::f32;
      tokens.hidden = hidden.as(), tokens.topk_ids = ids.as<int32_t>(),
      tokens.topk_weights = weights.as<float>();
      tokens.out = out.as(), tokens.error = error.as<int32_t>();
      const auto draw = [&](uint64_t seed) {
        const Tokens drawn = draw_tokens(m, 128, 6, 3, seed);
        hidden.upload(drawn.hidden.data(), hidden.bytes());
        ids.upload(drawn.ids.data(), ids.bytes());
        weights.upload(drawn.weights.data(), weights.bytes());
        out.fill(0xFF), workspace.fill(0xFF), error.fill(0);
        return drawn;
      };
      draw(1);
      const cuda::DeviceGraph graph(
          stream, [&] { layer.forward(tokens, workspace.as(), workspace.bytes(), stream.get()); });
      for (const uint64_t seed : {2, 3}) {
        const Tokens drawn = draw(seed);
        graph.replay(stream);
        stream.synchronize();
        const auto want = moe_reference(drawn.input(), made.w13(), made.w2());
        CHECK(relative_error(out.download<float>(), want) < bound(layout, Float::f32));
        CHECK(error.download<int32_t>()[0] == 0);
      }
    }
  }
}

TEST_CASE("a device layer does not read the file again, and a damaged one is refused on the way") {
  if (no_gpu()) return;
  for (const char* layout : kLayouts) {
    const ConvertedLayer made(layout, 3, 16, 32);
    const RuntimeArtifact artifact = RuntimeArtifact::open(made.path());
    const RuntimeLayer layer = artifact.load(0, Device::cuda);
    const Tokens tokens = draw_tokens(2, 32, 3, 2, 1);
    const auto before = layer.run(tokens.input()).out;
    std::filesystem::resize_file(made.shard(), 8);
    CHECK(layer.run(tokens.input()).out == before);
    CHECK_THROWS_AS(artifact.load(0, Device::cuda), Error);
  }
  const ConvertedLayer made("v7", 3, 16, 32);
  const Checkpoint c = Checkpoint::open(made.path());
  const size_t meta = c.find(std::string(ConvertedLayer::kName) + ".w2_meta").value();
  std::fstream file(made.shard(), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(c.shard_of(meta).data_begin + c.tensors()[meta].begin));
  file.put('\0');
  file.close();
  const RuntimeArtifact artifact = RuntimeArtifact::open(made.path());
  std::string on_cpu, on_cuda;
  for (const auto& [device, message] : {std::pair{Device::cpu, &on_cpu}, {Device::cuda, &on_cuda}}) {
    *message = message_of([&, on = device] { artifact.load(0, on); });
  }
  CHECK(on_cpu == on_cuda);
  CHECK_MESSAGE(on_cuda.find("expected two ascending positions") != std::string::npos, on_cuda);
}

TEST_CASE("ids out of range are refused before a run") {
  if (no_gpu()) return;
  for (const char* layout : kLayouts) {
    const ConvertedLayer made(layout, 3, 16, 32);
    const RuntimeLayer layer = RuntimeArtifact::open(made.path()).load(0, Device::cuda);
    Tokens tokens = draw_tokens(2, 32, 3, 2, 1);
    tokens.ids[2] = 3;
    CHECK_THROWS_WITH_AS(layer.run(tokens.input()), "topk_ids[1, 0]: expected an expert from 0 to 2, found 3",
                         Error);
  }
}

}  // namespace runtime_test
