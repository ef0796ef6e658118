#pragma once
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "kernels/device/device_memory.h"
#include "kernels/moe/dense_moe.h"
#include "tools/bench/bench.h"
#include "tools/bench/fp8/fp8_multiply.h"

namespace twofour {

/// One kernel on one shape.
struct KernelBench {
  std::string name, shape;
  double bytes;         ///< bytes to move: weights in products, input and output in conversions
  Spread microseconds;  ///< of a launch
  double gb_s;          ///< bytes divided by the median time
  double copy_share;    ///< gb_s divided by that of a copy on the same device, bytes read and written
  double tflop_s;       ///< of the products with stored weights; 0 without products
};

/// The routed experts of a model's layer.
struct MoeShape {
  std::string model;
  int64_t h, i;
  int experts, topk;
};

struct KernelBenchOptions {
  std::string filter;  ///< only kernels with this text in "name, shape"
  int rounds = 15;
};

/// Compares the kernels with the speed of a copy on the device. Every measurement replays a CUDA graph of
/// launches that rotate through kRotation bytes of weights, one layer each, as in a model: kernels choose
/// their tiles by the rows and experts of the given layer.
class KernelBenches {
 public:
  /// Measures the copy. Throws Error if there is no CUDA device.
  explicit KernelBenches(const KernelBenchOptions& options);

  double copy_gb_s() const { return copy_gb_s_; }
  /// Throws Error if the filter leaves nothing.
  std::vector<KernelBench> run();

  /// Seconds of one of `launches` calls of `launch(i)`, replayed as a graph.
  Spread time(int launches, const std::function<void(int, cuda::Stream)>& launch) const;
  bool wanted(const std::string& name, const std::string& shape) const;
  struct Work {
    double bytes, flops = 0;
  };
  KernelBench result(std::string name, std::string shape, Work work, Spread seconds) const;

  /// sparse_multiply with `active` different experts and `per_expert` rows each.
  KernelBench sparse_multiply(cuda::SparseLayout layout, int64_t n, int64_t k, int active, int per_expert,
                              const cuda::SparsePlan& plan = {}) const;
  /// dense_multiply of g8, the same way: the speed that 2:4 has to exceed.
  KernelBench dense_multiply(int64_t n, int64_t k, int active, int per_expert) const;
  /// Fp8Multiply of neighbouring experts, with BF16 output: all at once, or one by one with scales of rows.
  KernelBench fp8_multiply(cuda::Fp8Scaling scaling, int64_t n, int64_t k, int active, int per_expert) const;
  /// sparse_moe of a model's layers, one after another; every token draws new experts.
  void add_sparse_layers(std::vector<KernelBench>& results, const MoeShape& shape, cuda::SparseLayout layout,
                         std::span<const int> tokens) const;
  /// dense_moe the same way, W4A4 (`quantized`) or W4A16, SwiGLU fused or not.
  void add_dense_layers(std::vector<KernelBench>& results, const MoeShape& shape, bool quantized, bool fused,
                        std::span<const int> tokens) const;
  /// The numbers in `tokens` that the filter leaves.
  std::vector<int> wanted_tokens(const std::string& name, const MoeShape& shape,
                                 std::span<const int> tokens) const;

  /// Pruning and packing, dequantization and quantization of `experts` [n, k]; bytes read and written.
  void add_conversions(std::vector<KernelBench>& results, int64_t n, int64_t k, int experts) const;
  void add_quantization_of_products(std::vector<KernelBench>& results) const;

 private:
  KernelBenchOptions options_;
  cuda::DeviceStream stream_;
  double copy_gb_s_ = 0;
};

}  // namespace twofour
