#pragma once
#include <cstdint>

#include "kernels/device/stream.h"
#include "kernels/floats/device_matrix.h"

namespace twofour::cuda {

/// How a router makes experts and weights of logits.
struct RouterRule {
  int64_t experts = 0, top_k = 0;
  bool sigmoid = false;                 ///< else softmax over all experts
  bool renormalized = false;            ///< weights of the chosen are brought to a sum of 1
  double scaling = 1;                   ///< of all weights
  int64_t groups = 1, kept_groups = 1;  ///< experts come from the best groups alone
  bool sums_two = false;  ///< a group is as good as its best two experts together; else as its best
  const float* correction = nullptr;  ///< [experts] in device memory, added for the choice alone; or nullptr
};
/// Experts of a router, at most.
inline constexpr int64_t kMostRouted = 1024;

/// Chooses experts by logits [m, experts], of equal scores the lowest: ids and weights [m, top_k].
/// Logits that are not finite set *error, which the caller clears.
void choose_experts(const RouterRule& rule, const float* logits, int64_t m, int32_t* ids, float* weights,
                    int32_t* error, Stream stream);

/// One token from its row to its experts in one launch.
struct RoutedToken {
  RouterRule rule;
  DeviceMatrix router;       ///< [experts, H]; H at most 8128
  RowInput in;               ///< the token
  float* normed = nullptr;   ///< [H], takes what is multiplied
  float* logits = nullptr;   ///< [experts]
  int32_t* ids = nullptr;    ///< [top_k]
  float* weights = nullptr;  ///< [top_k]
  int32_t* error = nullptr;  ///< as of choose_experts
  int32_t* done = nullptr;   ///< [1], 0 before the first call
};
void route_token(const RoutedToken& token, Stream stream);

}  // namespace twofour::cuda
