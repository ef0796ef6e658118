#include <array>
#include <map>

#include "kernels/device/cublaslt.h"
#include "kernels/device/launch.cuh"
#include "kernels/floats/device_gemm.h"

namespace twofour::cuda {
namespace {

constexpr size_t kWorkspace = 32 << 20;

/// A shape, and the algorithm with which cuBLASLt multiplies it. cuBLASLt reads matrices as column-major, so
/// b (K x N), transposed, times a (K x M) gives out (N x M).
struct Plan {
  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t left = nullptr, right = nullptr, out = nullptr;
  cublasLtMatmulHeuristicResult_t chosen{};
  bool works = false;

  Plan(cublasLtHandle_t handle, const PlaneProduct& p) {
    const CublasLt& lt = cublaslt();
    const auto plane = [&](cublasLtMatrixLayout_t& to, const Bf16Plane& from, int64_t rows) {
      const auto r = static_cast<uint64_t>(rows), k = static_cast<uint64_t>(p.k);
      return from.turned ? lt.create_matrix(&to, CUDA_R_16BF, r, k, from.stride)
                         : lt.create_matrix(&to, CUDA_R_16BF, k, r, from.stride);
    };
    const cublasOperation_t of_b = p.b.turned ? CUBLAS_OP_N : CUBLAS_OP_T,
                            of_a = p.a.turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtMatmulPreference_t preference = nullptr;
    int found = 0;
    const auto ok = [](cublasStatus_t status) { return status == CUBLAS_STATUS_SUCCESS; };
    works = ok(lt.create_product(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F)) &&
            ok(lt.set_product(product, CUBLASLT_MATMUL_DESC_TRANSA, &of_b, sizeof of_b)) &&
            ok(lt.set_product(product, CUBLASLT_MATMUL_DESC_TRANSB, &of_a, sizeof of_a)) &&
            ok(plane(left, p.b, p.n)) && ok(plane(right, p.a, p.m)) &&
            ok(lt.create_matrix(&out, CUDA_R_32F, static_cast<uint64_t>(p.n), static_cast<uint64_t>(p.m),
                                p.stride)) &&
            ok(lt.create_preference(&preference)) &&
            ok(lt.set_preference(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &kWorkspace,
                                 sizeof kWorkspace)) &&
            align(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, p.b.data) &&
            align(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, p.a.data) &&
            align(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, p.out) &&
            align(preference, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, p.out) &&
            ok(lt.choose(handle, product, left, right, out, out, preference, 1, &chosen, &found)) &&
            found == 1;
    if (preference != nullptr) lt.destroy_preference(preference);
  }
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;
  ~Plan() {
    const CublasLt& lt = cublaslt();
    for (cublasLtMatrixLayout_t matrix : {left, right, out}) {
      if (matrix != nullptr) lt.destroy_matrix(matrix);
    }
    if (product != nullptr) lt.destroy_product(product);
  }

 private:
  static bool align(cublasLtMatmulPreference_t preference, cublasLtMatmulPreferenceAttributes_t which,
                    const void* data) {
    const uint32_t bytes = alignment_of(data);
    return cublaslt().set_preference(preference, which, &bytes, sizeof bytes) == CUBLAS_STATUS_SUCCESS;
  }

 public:
  static uint32_t alignment_of(const void* data) {
    uint32_t bytes = 256;
    while (bytes > 1 && reinterpret_cast<uintptr_t>(data) % bytes != 0) bytes /= 2;
    return bytes;
  }
};

}  // namespace

struct LibraryProducts::Plans {
  using Key = std::array<int64_t, 12>;
  cublasLtHandle_t handle = nullptr;
  DeviceMemory workspace;
  std::map<Key, Plan> made;
};

LibraryProducts::LibraryProducts() {
  const CublasLt& lt = cublaslt();
  if (!lt.missing.empty()) return;
  auto plans = std::make_unique<Plans>();
  if (lt.create(&plans->handle) != CUBLAS_STATUS_SUCCESS) return;
  plans_ = std::move(plans);
  plans_->workspace = DeviceMemory(kWorkspace);
}

LibraryProducts::~LibraryProducts() {
  if (!plans_) return;
  plans_->made.clear();
  cublaslt().destroy(plans_->handle);
}

bool LibraryProducts::multiply(const PlaneProduct& p, Stream stream) {
  if (!plans_) return false;
  const Plans::Key key{p.m,
                       p.n,
                       p.k,
                       p.a.stride,
                       p.b.stride,
                       p.stride,
                       p.a.turned,
                       p.b.turned,
                       p.adds,
                       Plan::alignment_of(p.a.data),
                       Plan::alignment_of(p.b.data),
                       Plan::alignment_of(p.out)};
  const Plan& plan = plans_->made.try_emplace(key, plans_->handle, p).first->second;
  if (!plan.works) return false;
  const float scale = p.scale, beta = p.adds ? 1.0f : 0.0f;
  const cublasStatus_t status = cublaslt().multiply(
      plans_->handle, plan.product, &scale, p.b.data, plan.left, p.a.data, plan.right, &beta, p.out, plan.out,
      p.out, plan.out, &plan.chosen.algo, plans_->workspace.as(), kWorkspace, stream);
  expect(status == CUBLAS_STATUS_SUCCESS, "product of planes", "cuBLASLt to start",
         "status " + std::to_string(status));
  return true;
}

}  // namespace twofour::cuda
