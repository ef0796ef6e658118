#pragma once
#include "kernels/moe/sparse_moe.h"
#include "tests/support/device/device_experts.h"

namespace twofour {

/// Tokens of an MoE layer and where the router sends them, on both sides. On the device they keep their
/// place, so that a captured graph finds the next ones.
struct DeviceTokens {
  int64_t m, topk;
  cuda::Float type;
  Activations hidden;
  std::vector<int32_t> map, ids;
  std::vector<float> topk_weights;
  cuda::DeviceMemory device_map, device_ids, device_weights, out, error;

  /// `e` experts are here, of twice as many in the world, which the map has in another order.
  DeviceTokens(int64_t e, int64_t h, int64_t tokens, int64_t experts_a_token, cuda::Float number)
      : m(tokens),
        topk(experts_a_token),
        type(number),
        hidden(static_cast<size_t>(m * h), type, 13),
        map(static_cast<size_t>(2 * e), -1),
        device_ids(static_cast<size_t>(m * topk * 4)),
        device_weights(static_cast<size_t>(m * topk * 4)),
        out(static_cast<size_t>(m * h * size_of(type))),
        error(4) {
    for (size_t local = 0; local < static_cast<size_t>(e); ++local)
      map[(2 * local + 3) % map.size()] = static_cast<int32_t>(local);
    device_map = cuda::DeviceMemory(map);
  }

  /// A token's next expert, by its number in the world where the layer has a map.
  void add_row(int64_t expert, std::mt19937& random) {
    ids.push_back(static_cast<int32_t>(expert));
    topk_weights.push_back(0.1f + static_cast<float>(random() % 100) / 100.0f);
  }

  /// Takes what was drawn to the device.
  void upload() {
    const auto bits = Activations::to_bits(hidden.values, type);
    hidden.device.upload(bits.data(), bits.size());
    device_ids.upload(ids.data(), ids.size() * 4);
    device_weights.upload(topk_weights.data(), topk_weights.size() * 4);
    poison();
  }

  void poison() {
    out.fill(0xFF);
    error.fill(0);
  }

  MoeOptions options(bool mapped, bool weight_on_input, double limit) const {
    return {mapped ? device_map.as<int32_t>() : nullptr, mapped ? static_cast<int64_t>(map.size()) : 0,
            weight_on_input, static_cast<float>(limit)};
  }

  cuda::MoeTokens tokens() const {
    return {m,
            topk,
            type,
            hidden.device.as(),
            device_ids.as<int32_t>(),
            device_weights.as<float>(),
            out.as(),
            error.as<int32_t>()};
  }
};

}  // namespace twofour
