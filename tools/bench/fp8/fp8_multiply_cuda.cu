#include "tools/bench/fp8/fp8_multiply.h"

#include <memory>
#include <utility>

#include "kernels/device/cublaslt.h"
#include "kernels/device/launch.cuh"

namespace twofour::cuda {
namespace {

constexpr const char* kWhere = "FP8 multiplication";
constexpr size_t kMostWorkspace = 32 << 20;

const CublasLt& required_cublaslt() {
  const CublasLt& library = cublaslt();
  expect(library.missing.empty(), kWhere, "cuBLASLt", library.missing);
  return library;
}

void check_cublas(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(std::string(kWhere) + ": " + what + ": cuBLASLt: status " + std::to_string(status));
}

cudaDataType_t data_type(Float type) { return type == Float::f32 ? CUDA_R_32F : CUDA_R_16BF; }

}  // namespace

/// The cuBLASLt objects for a shape. cuBLASLt reads matrices as column-major, so weights (K x N), transposed,
/// times x (K x M) gives out (N x M).
struct Fp8Multiply::Plan {
  template <class T>
  using Owned = std::unique_ptr<std::remove_pointer_t<T>, cublasStatus_t (*)(T)>;

  const CublasLt& lt;
  Fp8Shape shape;
  Owned<cublasLtHandle_t> handle;
  Owned<cublasLtMatmulDesc_t> product;
  Owned<cublasLtMatrixLayout_t> weights, x, out;
  cublasLtMatmulHeuristicResult_t chosen{};

  explicit Plan(const Fp8Shape& s)
      : lt(required_cublaslt()),
        shape(s),
        handle(make<cublasLtHandle_t>(lt.destroy, "a handle", lt.create)),
        product(make<cublasLtMatmulDesc_t>(lt.destroy_product, "a product", lt.create_product,
                                           CUBLAS_COMPUTE_32F, CUDA_R_32F)),
        weights(matrix(CUDA_R_8F_E4M3, s.k, s.n)),
        x(matrix(CUDA_R_8F_E4M3, s.k, s.m)),
        out(matrix(data_type(s.out_type), s.n, s.m)) {
    set(CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_T);
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t{0});
    const auto mode =
        static_cast<int32_t>(s.scaling == Fp8Scaling::row ? CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F
                                                          : CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F);
    set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode);
    choose();
  }

  /// Creates an object of cuBLASLt. `destroy` will destroy it.
  template <class T, class... Arguments>
  static Owned<T> make(cublasStatus_t (*destroy)(T), const char* what,
                       cublasStatus_t (*create)(T*, Arguments...),
                       std::type_identity_t<Arguments>... arguments) {
    T made = nullptr;
    check_cublas(create(&made, arguments...), what);
    return {made, destroy};
  }

  Owned<cublasLtMatrixLayout_t> matrix(cudaDataType_t type, int64_t rows, int64_t columns) const {
    auto made =
        make<cublasLtMatrixLayout_t>(lt.destroy_matrix, "a matrix", lt.create_matrix, type,
                                     static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), rows);
    if (shape.e == 1) return made;
    const auto count = static_cast<int32_t>(shape.e);
    const int64_t stride = rows * columns;
    check_cublas(lt.set_matrix(made.get(), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
                 "a batch");
    check_cublas(
        lt.set_matrix(made.get(), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride, sizeof stride),
        "a batch");
    return made;
  }

  template <class T>
  void set(cublasLtMatmulDescAttributes_t attribute, const T& value) const {
    check_cublas(lt.set_product(product.get(), attribute, &value, sizeof value), "an attribute");
  }

  void choose() {
    const auto preference =
        make<cublasLtMatmulPreference_t>(lt.destroy_preference, "a preference", lt.create_preference);
    check_cublas(lt.set_preference(preference.get(), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                   &kMostWorkspace, sizeof kMostWorkspace),
                 "a preference");
    // The algorithm depends on whether scales are given, not on their addresses.
    set_scales(reinterpret_cast<const float*>(256), reinterpret_cast<const float*>(256));
    int found = 0;
    const cublasStatus_t status = lt.choose(handle.get(), product.get(), weights.get(), x.get(), out.get(),
                                            out.get(), preference.get(), 1, &chosen, &found);
    expect(status == CUBLAS_STATUS_SUCCESS && found == 1, kWhere, "a shape that cuBLASLt takes here",
           std::to_string(shape.e) + " times " + std::to_string(shape.n) + " x " + std::to_string(shape.k) +
               ", status " + std::to_string(status));
  }

  void set_scales(const float* of_weights, const float* of_x) const {
    set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, of_weights);
    set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, of_x);
  }
};

std::string no_cublaslt_reason() { return cublaslt().missing; }

Fp8Multiply::Fp8Multiply(const Fp8Shape& s) {
  expect(s.e > 0 && s.m > 0 && s.n > 0 && s.k > 0 && s.n % 16 == 0 && s.k % 16 == 0 && s.e < (1 << 20) &&
             s.m < (1 << 24) && s.n < (1 << 24) && s.k < (1 << 24),
         kWhere, "N and K multiples of 16", std::to_string(s.n) + " x " + std::to_string(s.k));
  expect(s.scaling == Fp8Scaling::tensor || s.e == 1, kWhere, "one expert where rows have scales",
         std::to_string(s.e));
  expect(s.out_type != Float::f16, kWhere, "F32 or BF16 out", "F16");
  plan_ = new Plan(s);
}

Fp8Multiply::~Fp8Multiply() { delete plan_; }

size_t Fp8Multiply::workspace_bytes() const { return plan_->chosen.workspaceSize; }

void Fp8Multiply::run(const Fp8Rows& weights, const Fp8Rows& x, void* out, void* workspace,
                      Stream stream) const {
  const Plan& p = *plan_;
  const auto address = [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer); };
  expect((address(weights.codes) | address(weights.scales) | address(x.codes) | address(x.scales) |
          address(out)) %
                 16 ==
             0,
         kWhere, "matrices and scales on multiples of 16 bytes", "another address");
  p.set_scales(weights.scales, x.scales);
  const float one = 1, zero = 0;
  check_cublas(p.lt.multiply(p.handle.get(), p.product.get(), &one, weights.codes, p.weights.get(), x.codes,
                             p.x.get(), &zero, out, p.out.get(), out, p.out.get(), &p.chosen.algo, workspace,
                             p.chosen.workspaceSize, stream),
               "a product");
}

}  // namespace twofour::cuda
