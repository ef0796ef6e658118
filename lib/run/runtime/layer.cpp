#include "lib/run/runtime/layer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "formats/error.h"
#include "kernels/device/device.h"
#include "kernels/moe/moe.h"
#include "lib/base/threads/stopwatch.h"
#include "lib/run/runtime/state.h"
#include "lib/run/runtime/tokens.h"

namespace twofour {
namespace {

void check_input(const LayerState& layer, const MoeInput& in) {
  const auto& name = layer.info.name;
  if (in.m < 0 || in.topk < 1 || in.h != layer.info.h)
    throw Error(
        fmt::format("{}: expected hidden [M, {}] and at least 1 expert a token, found [{}, {}] and {}", name,
                    layer.info.h, in.m, in.h, in.topk));
  const auto m = static_cast<size_t>(in.m), t = static_cast<size_t>(in.topk);
  if (in.hidden.size() != m * static_cast<size_t>(in.h) || in.topk_ids.size() != m * t ||
      in.topk_weights.size() != m * t) {
    throw Error(fmt::format(
        "{}: expected hidden [{}, {}], ids and weights [{}, {}], found {}, {} and {} "
        "values",
        name, in.m, in.h, in.m, in.topk, in.hidden.size(), in.topk_ids.size(), in.topk_weights.size()));
  }
  const LayerOptions& own = layer.options;
  const bool same = std::ranges::equal(in.expert_map, own.expert_map) &&
                    in.weight_on_input == own.weight_on_input && in.limit == static_cast<double>(own.limit);
  if (!same)
    throw Error(fmt::format(
        "{}: expected the expert map, limit and kind of weights from loading, found others", name));
}

}  // namespace

bool is_limit(double value) {
  const auto limit = static_cast<float>(value);
  return std::isfinite(limit) && limit >= 0 && (limit > 0 || value == 0);
}

RuntimeLayer::RuntimeLayer(std::unique_ptr<LayerState> state) : state_(std::move(state)) {}
RuntimeLayer::RuntimeLayer(RuntimeLayer&&) noexcept = default;
RuntimeLayer& RuntimeLayer::operator=(RuntimeLayer&&) noexcept = default;
RuntimeLayer::~RuntimeLayer() = default;

const LayerInfo& RuntimeLayer::info() const { return state_->info; }
Device RuntimeLayer::device() const { return state_->device; }
uint64_t RuntimeLayer::device_bytes() const { return state_->memory.bytes(); }

size_t RuntimeLayer::workspace_bytes(int64_t m, int64_t topk) const {
  if (state_->device == Device::cpu || m == 0) return 0;
  const CudaDeviceScope scope(state_->cuda_device);
  if (m < 0 || topk < 1)
    throw Error(fmt::format("{}: expected tokens with experts, found {} with {}", info().name, m, topk));
  return state_->is_dense ? cuda::dense_moe_workspace(state_->dense, m, topk)
                          : cuda::sparse_moe_workspace(state_->sparse, m, topk);
}

bool RuntimeLayer::rounds_to_bf16(int64_t m, int64_t topk) const {
  if (state_->device == Device::cpu) return false;
  const CudaDeviceScope scope(state_->cuda_device);
  return state_->is_dense ? cuda::dense_moe_in_bf16(state_->dense, m, topk)
                          : cuda::sparse_moe_in_bf16(state_->sparse, m, topk);
}

uint64_t RuntimeLayer::run_bytes(int64_t m, int64_t topk) const {
  if (state_->device == Device::cpu || m == 0) return 0;
  const auto tokens = static_cast<uint64_t>(m);
  const uint64_t each = 2 * static_cast<uint64_t>(info().h) * sizeof(float) + 8 * static_cast<uint64_t>(topk);
  return workspace_bytes(m, topk) + tokens * each + sizeof(int32_t);
}

void RuntimeLayer::forward(const cuda::MoeTokens& tokens, void* workspace, size_t bytes,
                           cuda::Stream stream) const {
  if (state_->device == Device::cpu) {
    for (const InputFile* file : state_->files) file->check_unchanged();
    cpu::moe(state_->cpu, tokens);
    return;
  }
  const CudaDeviceScope scope(state_->cuda_device);
  if (state_->is_dense) {
    cuda::dense_moe(state_->dense, tokens, workspace, bytes, stream);
  } else {
    cuda::sparse_moe(state_->sparse, tokens, workspace, bytes, stream);
  }
}

LayerRun RuntimeLayer::run(const MoeInput& in, cuda::Float type, bool warm_up) const {
  check_input(*state_, in);
  if (in.m == 0) return {};
  // Ids are checked on the host first, since the device reports an id out of range only at the end.
  route_rows(in.topk_ids, in.topk, info().e, in.expert_map);
  const std::vector<uint8_t> hidden = to_float_bytes(in.hidden, type);
  cuda::MoeTokens tokens;
  tokens.m = in.m, tokens.topk = in.topk, tokens.type = type;
  if (state_->device == Device::cpu) {
    std::vector<uint8_t> out(hidden.size());
    tokens.hidden = hidden.data(), tokens.topk_ids = in.topk_ids.data();
    tokens.topk_weights = in.topk_weights.data();
    tokens.out = out.data();
    if (warm_up) forward(tokens, nullptr, 0);
    const Stopwatch watch;
    forward(tokens, nullptr, 0);
    const double seconds = watch.seconds();
    return {from_float_bytes(out, type), seconds};
  }
  const CudaDeviceScope scope(state_->cuda_device);
  const cuda::DeviceMemory device_hidden(hidden),
      ids(std::vector<int32_t>(in.topk_ids.begin(), in.topk_ids.end())),
      weights(std::vector<float>(in.topk_weights.begin(), in.topk_weights.end())),
      error(std::vector<int32_t>{0}), out(hidden.size()), workspace(workspace_bytes(in.m, in.topk));
  tokens.hidden = device_hidden.as(), tokens.topk_ids = ids.as<int32_t>();
  tokens.topk_weights = weights.as<float>();
  tokens.out = out.as(), tokens.error = error.as<int32_t>();
  const cuda::DeviceStream stream;
  const auto once = [&] { forward(tokens, workspace.as(), workspace.bytes(), stream.get()); };
  if (warm_up) once();
  // A single measurement includes the host, which may be delayed.
  std::vector<double> rounds(warm_up ? 9 : 1);
  for (double& seconds : rounds) seconds = cuda::device_seconds(stream, once);
  const auto median = rounds.begin() + static_cast<std::ptrdiff_t>(rounds.size() / 2);
  std::nth_element(rounds.begin(), median, rounds.end());
  const double seconds = *median;
  if (error.download<int32_t>()[0] != 0)
    throw Error(fmt::format("{}: expected ids of experts, found others on the device", info().name));
  return {from_float_bytes(out.download<uint8_t>(), type), seconds};
}

}  // namespace twofour
