#include "formats/error.h"
#include "kernels/attention/device_attention.h"
#include "kernels/attention/device_compressed.h"
#include "kernels/attention/device_delta.h"
#include "kernels/attention/device_streams.h"
#include "kernels/device/device.h"
#include "kernels/device/device_memory.h"
#include "kernels/floats/device_gemm.h"
#include "kernels/floats/device_matrix.h"
#include "kernels/floats/device_vectors.h"
#include "kernels/moe/dense_moe.h"
#include "kernels/moe/device_router.h"
#include "kernels/moe/sparse_moe.h"
#include "kernels/pack/device_pack.h"
#include "kernels/solve/device_solve.h"

namespace twofour {
namespace {

[[noreturn]] void refuse(const char* where) {
  throw Error(std::string(where) + ": expected a CUDA device, found a build without CUDA");
}

}  // namespace

std::optional<CudaDevice> cuda_device() { return std::nullopt; }
std::string no_cuda_reason() { return "built without CUDA"; }
int cuda_device_count() { return 0; }
int current_cuda_device() { return -1; }
CudaDeviceScope::CudaDeviceScope(int index) {
  if (index >= 0) refuse("device");
}
CudaDeviceScope::~CudaDeviceScope() = default;

namespace cuda {

void free_device_memory(void*) noexcept {}
void free_pinned_memory(void*) noexcept {}

DeviceMemory::DeviceMemory(size_t) { refuse("device memory"); }
void DeviceMemory::fill(int) { refuse("device memory"); }
void DeviceMemory::upload(const void*, size_t, size_t) { refuse("device memory"); }
void DeviceMemory::read(void*, size_t) const { refuse("device memory"); }
void copy_to_host(const void*, void*, size_t) { refuse("device memory"); }
uint64_t available_device_bytes() { refuse("device memory"); }
void copy_to_host(const void*, void*, size_t, const DeviceStream&) { refuse("device memory"); }
void copy_to_device(const void*, void*, size_t, const DeviceStream&) { refuse("device memory"); }
void move_device_bytes(const void*, void*, size_t, Stream) { refuse("device memory"); }
void clear_device_bytes(void*, size_t, Stream) { refuse("device memory"); }

PinnedMemory::PinnedMemory(size_t) { refuse("page-locked memory"); }

DeviceStream::DeviceStream() { refuse("stream"); }
DeviceStream::~DeviceStream() = default;
void DeviceStream::synchronize() const { refuse("stream"); }

DeviceEvent::DeviceEvent() { refuse("event"); }
DeviceEvent::~DeviceEvent() = default;
void DeviceEvent::record(const DeviceStream&) const { refuse("event"); }
void DeviceEvent::wait() const { refuse("event"); }

DeviceGraph::DeviceGraph(const DeviceStream&, const std::function<void()>&) { refuse("graph"); }
DeviceGraph::~DeviceGraph() = default;
void DeviceGraph::replay(const DeviceStream&) const { refuse("graph"); }

DeviceUpload::DeviceUpload(size_t) : bytes_(0) { refuse("upload"); }
DeviceUpload::~DeviceUpload() = default;
void DeviceUpload::copy(void*, size_t, const std::function<void(size_t, std::span<uint8_t>)>&) {
  refuse("upload");
}
void DeviceUpload::finish() { refuse("upload"); }

void copy_device(void*, const void*, size_t, Stream) { refuse("copy"); }
double device_seconds(const DeviceStream&, const std::function<void()>&) { refuse("event"); }

void prune_pack(const DenseMatrices&, SparseLayout, uint8_t* const (&)[3], Stream) { refuse("prune_pack"); }
void pack_g8(const DenseMatrices&, bool, uint8_t*, uint8_t*, Stream) { refuse("pack_g8"); }
void dequantize_to_bf16(const DenseMatrices&, const float*, void*, Stream) { refuse("dequantize_to_bf16"); }
void dequantize_to_fp8(const DenseMatrices&, const float*, const float*, uint8_t*, Stream) {
  refuse("dequantize_to_fp8");
}
void quantize_activations(const QuantizeActivations&, Stream) { refuse("quantize_activations"); }

size_t sparse_multiply_workspace(const SparseExperts&, const ExpertRows&) { refuse("sparse_multiply"); }
void sparse_multiply(const SparseExperts&, const ExpertRows&, void*, size_t, Stream, const SparsePlan&) {
  refuse("sparse_multiply");
}
void sparse_multiply_reference(const SparseExperts&, const ExpertRows&, Stream) {
  refuse("sparse_multiply_reference");
}

size_t dense_multiply_workspace(const DenseWeights&, const ExpertRows&) { refuse("dense_multiply"); }
void dense_multiply(const DenseWeights&, const ExpertRows&, void*, size_t, Stream, const DenseOptions&) {
  refuse("dense_multiply");
}

size_t dense_moe_workspace(const DenseMoe&, int64_t, int64_t) { refuse("dense_moe"); }
bool dense_moe_in_one(const DenseMoe&, const MoeTokens&) { refuse("dense_moe"); }
bool dense_moe_in_bf16(const DenseMoe&, int64_t, int64_t) { refuse("dense_moe"); }
void dense_moe(const DenseMoe&, const MoeTokens&, void*, size_t, Stream) { refuse("dense_moe"); }

size_t sparse_moe_workspace(const SparseMoe&, int64_t, int64_t) { refuse("sparse_moe"); }
bool sparse_moe_in_bf16(const SparseMoe&, int64_t, int64_t) { refuse("sparse_moe"); }
bool sparse_moe_in_one(const SparseMoe&, const MoeTokens&, const SparsePlan&) { refuse("sparse_moe"); }
void sparse_moe(const SparseMoe&, const MoeTokens&, void*, size_t, Stream, const SparseMoePlan&) {
  refuse("sparse_moe");
}

void rms_norm(const RmsNorm&, Stream) { refuse("rms_norm"); }
void prepare_heads(const PreparedHeads&, Stream) { refuse("heads"); }
void gate_heads(const HeadGates&, Stream) { refuse("gates of heads"); }
void run_delta(const DeltaTokens&, Stream) { refuse("linear attention"); }
void split_latent_heads(const LatentHeads&, Stream) { refuse("latent heads"); }
void turn_rows(const TurnedRows&, Stream) { refuse("rows of heads"); }
void keep_rows(const TokenSpan&, const KeptRows&, Stream) { refuse("rows that are kept"); }
void make_entries(const EntryMakers&, Stream) { refuse("compressed entries"); }
void choose_entries(const DeviceEntryScores&, Stream) { refuse("index of entries"); }
void attend_chosen(const DeviceChosenAttention&, Stream) { refuse("attention to entries"); }
size_t mix_streams_workspace(const StreamMixer&, int64_t) { refuse("residual streams"); }
void mix_streams(const StreamMixer&, const float*, int64_t, float*, float*, void*, Stream) {
  refuse("residual streams");
}
void write_streams(const StreamMixer&, const float*, const float*, int64_t, float*, Stream) {
  refuse("residual streams");
}
void begin_streams(const float*, int64_t, int64_t, int64_t, float*, Stream) { refuse("residual streams"); }
void attend(const DeviceAttention&, float*, Stream) { refuse("attention"); }
size_t attend_one_workspace(const DeviceAttention&) { refuse("attention"); }
void attend_one(const DeviceAttention&, const PreparedHeads&, float*, void*, Stream) { refuse("attention"); }

void multiply_row(std::span<const DeviceMatrix>, const RowInput&, const RowOutput&, Stream) {
  refuse("product of a row");
}
void multiply_expert_rows(const ExpertMatrices&, const int32_t*, int64_t, const RowInput&, const RowOutput&,
                          Stream) {
  refuse("product of a row");
}
void take_rows(const DeviceMatrix&, const int32_t*, int64_t, float*, Stream) { refuse("rows of a matrix"); }

struct LibraryProducts::Plans {};
LibraryProducts::LibraryProducts() { refuse("products"); }
LibraryProducts::~LibraryProducts() = default;
void multiply_planes_plainly(const PlaneProduct&, Stream) { refuse("products"); }
void MatrixProducts::set_rows(const float*, int64_t, int64_t, Stream, int) { refuse("products"); }
void MatrixProducts::multiply(const DeviceMatrix&, float*, int64_t, bool, Stream) { refuse("products"); }
void MatrixProducts::multiply(std::span<const DeviceMatrix>, float*, int64_t, Stream) { refuse("products"); }
void MatrixProducts::add_products(float*, Stream) { refuse("products"); }
void MatrixProducts::add_cross_products(const float*, int64_t, float*, Stream) { refuse("products"); }

void gate_rows(const float*, const float*, int64_t, int64_t, int64_t, const GateUnits&, float*, Stream) {
  refuse("gates");
}
void add_floats(float*, const float*, int64_t, Stream) { refuse("sum"); }
void subtract_floats(const float*, const float*, int64_t, float*, Stream) { refuse("difference"); }
void scale_rows(float*, const float*, int64_t, int64_t, Stream) { refuse("rows"); }
void find_largest(const float*, int64_t, float*, Stream) { refuse("largest number"); }
void scale_by_gates(float*, const float*, int64_t, int64_t, Stream) { refuse("gates"); }
void gather_rows(const float*, const int32_t*, int64_t, int64_t, float*, Stream) { refuse("rows"); }
void scatter_rows(const float*, const int32_t*, const float*, int64_t, int64_t, float*, Stream) {
  refuse("rows");
}
void add_weighted_rows(const float*, const float*, int64_t, int64_t, int64_t, float*, Stream) {
  refuse("rows");
}
void sum_of_norms(const float*, const float*, int64_t, int64_t, double*, Stream) { refuse("norms"); }
void logit_figures(const float*, int64_t, int64_t, const int32_t*, const float*, const LogitFigures*,
                   LogitFigures*, Stream) {
  refuse("figures of logits");
}
size_t choose_token_workspace() { refuse("token"); }
void choose_token(const float*, int64_t, void*, TokenState*, LogitFigures*, Stream) { refuse("token"); }
void choose_experts(const RouterRule&, const float*, int64_t, int32_t*, float*, int32_t*, Stream) {
  refuse("router");
}

void route_token(const RoutedToken&, Stream) { refuse("router"); }

struct DeviceSolver::Buffers {};
DeviceSolver::DeviceSolver() { refuse("solve"); }
DeviceSolver::~DeviceSolver() = default;
void DeviceSolver::solve(const SolveRule&, const DeviceHessian&, float, const SolveInput&,
                         const SolveOutput&) {
  refuse("solve");
}
std::vector<double> DeviceSolver::quadratic_forms(const DeviceHessian&, std::span<const float>) {
  refuse("quadratic_forms");
}
void DeviceHessian::load(const DampedHessian&, const GroupMaps*, std::span<const float>) { refuse("solve"); }
void DeviceHessian::factorize(double, double, bool, bool) { refuse("solve"); }
void DeviceHessian::multiply_inverse(std::span<float>) { refuse("solve"); }
std::vector<float> DeviceHessian::factor() const { refuse("solve"); }

}  // namespace cuda
}  // namespace twofour
