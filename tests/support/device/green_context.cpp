#include "tests/support/device/green_context.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include "formats/error.h"

namespace twofour {

namespace {

/// Calls a function of the driver, which programs are not linked with.
template <class Function, class... Arguments>
void driver(const char* name, Arguments... arguments) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult why{};
  if (cudaGetDriverEntryPointByVersion(name, &found, 12050, cudaEnableDefault, &why) != cudaSuccess || !found)
    throw Error(std::string("CUDA driver: expected ") + name + ", found none");
  const CUresult result = reinterpret_cast<Function*>(found)(arguments...);
  if (result != CUDA_SUCCESS) throw Error(std::string(name) + ": CUDA: error " + std::to_string(result));
}

}  // namespace

GreenContext::GreenContext(unsigned multiprocessors) {
  int device = 0;
  if (cudaGetDevice(&device) != cudaSuccess || cudaFree(nullptr) != cudaSuccess)
    throw Error("no CUDA device");
  CUdevResource all{}, some{}, rest{};
  driver<decltype(cuDeviceGetDevResource)>("cuDeviceGetDevResource", device, &all, CU_DEV_RESOURCE_TYPE_SM);
  unsigned groups = 1;
  driver<decltype(cuDevSmResourceSplitByCount)>("cuDevSmResourceSplitByCount", &some, &groups, &all, &rest,
                                                0u, multiprocessors);
  CUdevResourceDesc description{};
  driver<decltype(cuDevResourceGenerateDesc)>("cuDevResourceGenerateDesc", &description, &some, 1u);
  CUgreenCtx context = nullptr;
  driver<decltype(cuGreenCtxCreate)>("cuGreenCtxCreate", &context, description, device,
                                     unsigned{CU_GREEN_CTX_DEFAULT_STREAM});
  context_ = context;
  multiprocessors_ = some.sm.smCount;
}

GreenContext::~GreenContext() {
  driver<decltype(cuGreenCtxDestroy)>("cuGreenCtxDestroy", static_cast<CUgreenCtx>(context_));
}

cuda::Stream GreenContext::stream() const {
  CUstream stream = nullptr;
  driver<decltype(cuGreenCtxStreamCreate)>("cuGreenCtxStreamCreate", &stream,
                                           static_cast<CUgreenCtx>(context_),
                                           unsigned{CU_STREAM_NON_BLOCKING}, 0);
  return stream;
}

}  // namespace twofour
