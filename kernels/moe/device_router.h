#pragma once
#include <cstdint>

#include "kernels/device/stream.h"
#include "kernels/floats/device_matrix.h"
#include "kernels/moe/router.h"

namespace twofour::cuda {

/// The rule of one layer on the device; no kernel has kSqrtSoftplus.
struct RouterRule : twofour::RouterRule {
  int64_t experts = 0, top_k = 0;
  bool sigmoid = false;               ///< scores == kSigmoid
  const float* correction = nullptr;  ///< [experts] in device memory, added only for the choice; or nullptr
};
/// The most experts of a router.
inline constexpr int64_t kMostRouted = 1024;

/// Chooses experts by logits [m, experts]: ids and weights [m, top_k]. The lowest of equal scores wins.
/// Logits that are not finite set *error, which the caller clears.
void choose_experts(const RouterRule& rule, const float* logits, int64_t m, int32_t* ids, float* weights,
                    int32_t* error, Stream stream);

/// The routing of one token, from its row to its experts, in one launch.
struct RoutedToken {
  RouterRule rule;
  DeviceMatrix router;       ///< [experts, H]; a row fits shared memory beside 32 KB
  RowInput in;               ///< the token
  float* normed = nullptr;   ///< [H], receives the multiplied row
  uint64_t* sent = nullptr;  ///< [experts], zeros before the first call and after each: logits on their way
  int32_t* ids = nullptr;    ///< [top_k]
  float* weights = nullptr;  ///< [top_k]
  int32_t* error = nullptr;  ///< as in choose_experts
};
void route_token(const RoutedToken& token, Stream stream);

}  // namespace twofour::cuda
