#pragma once
#include <cstdint>

#include "kernels/device/stream.h"
#include "kernels/floats/device_matrix.h"
#include "kernels/moe/router.h"

namespace twofour::cuda {

/// The routing rule of one layer on the device.
struct RouterRule : twofour::RouterRule {
  int64_t experts = 0, top_k = 0;
  const float* correction = nullptr;  ///< [experts] in device memory, added only for the choice; may be null
  /// [vocabulary, top_k] experts of each token, which then are not chosen by their scores; may be null. Every
  /// expert is below `experts`.
  const int32_t* table = nullptr;
  const int32_t* tokens = nullptr;  ///< [m] the tokens, if there is a table
};
/// The largest number of experts of a router.
inline constexpr int64_t kMostRouted = 1024;

/// Chooses experts by their logits [m, experts]. Writes ids and weights [m, top_k]. If scores are equal, the
/// lowest id is chosen. Logits that are not finite set *error, which the caller clears.
void choose_experts(const RouterRule& rule, const float* logits, int64_t m, int32_t* ids, float* weights,
                    int32_t* error, Stream stream);

/// Arguments for routing one token in one launch, from its row to its experts.
struct RoutedToken {
  RouterRule rule;
  DeviceMatrix router;       ///< [experts, H]; shared memory must hold a row and 32 KB more
  RowInput in;               ///< the row of the token
  float* normed = nullptr;   ///< [H], receives the row that is multiplied
  uint64_t* sent = nullptr;  ///< [experts] logits in transit; zeros before and after each call
  int32_t* ids = nullptr;    ///< [top_k]
  float* weights = nullptr;  ///< [top_k]
  int32_t* error = nullptr;  ///< as for choose_experts
};
void route_token(const RoutedToken& token, Stream stream);

}  // namespace twofour::cuda
