#include "kernels/device/tensor_map.h"

#include "kernels/device/driver.h"
#include "kernels/device/launch.cuh"

namespace twofour::cuda {

CUtensorMap describe_boxes(const uint16_t* x, int64_t rows, int64_t k, int box_rows) {
  constexpr const char* kEncode = "cuTensorMapEncodeTiled";
  static auto* const encode = driver_function<decltype(cuTensorMapEncodeTiled)>(kEncode, 12000);
  expect(encode != nullptr, kEncode, "a driver that has it", "another");
  CUtensorMap map;
  const cuuint64_t sizes[2] = {static_cast<cuuint64_t>(k), static_cast<cuuint64_t>(rows)};
  const cuuint64_t pitch[1] = {static_cast<cuuint64_t>(k) * 2};
  const cuuint32_t box[2] = {64, static_cast<cuuint32_t>(box_rows)}, every[2] = {1, 1};
  const CUresult result = encode(&map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, const_cast<uint16_t*>(x), sizes,
                                 pitch, box, every, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                 CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  expect(result == CUDA_SUCCESS, kEncode, "rows that can be copied in boxes", std::to_string(result));
  return map;
}

}  // namespace twofour::cuda
