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

/// The result of one kernel on one shape.
struct KernelBench {
  std::string name, shape;
  double bytes;         ///< bytes to move: weights in products, input and output in conversions
  Spread microseconds;  ///< time of one launch
  double gb_s;          ///< bytes divided by the median time
  double copy_share;    ///< gb_s divided by the GB/s of a copy on the same device, read plus written
  double tflop_s;       ///< TFLOP/s of the products with stored weights; 0 without products
};

/// The shape of the routed experts of a model's layer.
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
/// launches. They rotate through kRotation bytes of weights, one layer per launch, as in a model. Kernels
/// choose their tiles by the rows and experts of the given layer.
class KernelBenches {
 public:
  /// Measures the copy. Throws Error if there is no CUDA device.
  explicit KernelBenches(const KernelBenchOptions& options);

  double copy_gb_s() const { return copy_gb_s_; }
  /// Runs all benches that the filter selects. Throws Error if it selects none.
  std::vector<KernelBench> run();

  /// The time in seconds of one of `launches` calls of `launch(i)`, replayed as a graph.
  Spread time(int launches, const std::function<void(int, cuda::Stream)>& launch) const;
  bool wanted(const std::string& name, const std::string& shape) const;
  struct Work {
    double bytes, flops = 0;
  };
  KernelBench result(std::string name, std::string shape, Work work, Spread seconds) const;

  /// Measures sparse_multiply with `active` different experts and `per_expert` rows per expert.
  KernelBench sparse_multiply(cuda::SparseLayout layout, int64_t n, int64_t k, int active, int per_expert,
                              const cuda::SparsePlan& plan = {}) const;
  /// Measures dense_multiply of g8 with the same numbers of rows. 2:4 has to exceed its speed.
  KernelBench dense_multiply(int64_t n, int64_t k, int active, int per_expert) const;
  /// Measures Fp8Multiply of neighbouring experts with BF16 output. With one scale per tensor, all experts
  /// are multiplied at once. With scales of rows, they are multiplied one by one.
  KernelBench fp8_multiply(cuda::Fp8Scaling scaling, int64_t n, int64_t k, int active, int per_expert) const;
  /// Measures sparse_moe on a model's layers, one after another. Every token draws new experts.
  void add_sparse_layers(std::vector<KernelBench>& results, const MoeShape& shape, cuda::SparseLayout layout,
                         std::span<const int> tokens) const;
  /// Measures dense_moe in the same way, as W4A4 if `quantized` is true, otherwise as W4A16. SwiGLU is fused
  /// or not.
  void add_dense_layers(std::vector<KernelBench>& results, const MoeShape& shape, bool quantized, bool fused,
                        std::span<const int> tokens) const;
  /// The numbers in `tokens` that the filter selects.
  std::vector<int> wanted_tokens(const std::string& name, const MoeShape& shape,
                                 std::span<const int> tokens) const;

  /// Measures pruning and packing, dequantization and quantization of `experts` matrices [n, k]. Bytes read
  /// and written count.
  void add_conversions(std::vector<KernelBench>& results, int64_t n, int64_t k, int experts) const;
  void add_quantization_of_products(std::vector<KernelBench>& results) const;

 private:
  KernelBenchOptions options_;
  cuda::DeviceStream stream_;
  double copy_gb_s_ = 0;
};

}  // namespace twofour
