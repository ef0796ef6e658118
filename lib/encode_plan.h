#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/weight_dialect.h"
#include "kernels/numbers/quantize.h"

namespace twofour {

/// Global scales of another checkpoint, kept when weights are quantized again; by the modules' names, stacks
/// taken apart.
struct KeptScales {
  bool divides = false;  ///< as compressed-tensors stores them; else multipliers
  struct Scale {
    std::string name;
    uint32_t bits;  ///< float32
  };
  std::vector<Scale> scales = {};  ///< sorted by name
  void sort();
  const Scale* find(std::string_view name) const;  ///< null where there is none
};

/// What is written of an encoded matrix; OutputTensor::part.
enum class EncodedPart { kValues, kScales, kGlobalScale, kInputScale, kBias };
inline constexpr size_t kEncodedParts = 5;

/// How many weights share a scale of FP8.
enum class Granularity { kTensor, kRow, kBlock };

/// How matrices are encoded in another number format, from a recipe.
struct EncodeRule {
  bool fp8 = false;         ///< E4M3, else NVFP4
  std::string dialect;      ///< that is written
  Granularity granularity;  ///< of FP8
  // Of NVFP4:
  QuantizeRule quantize{};
  bool divides = false;  ///< the global scale that is written is a divisor
  bool prune = false;    ///< 2:4 before
};

/// One matrix that is encoded: some rows of one expert of a module of the source. Row i is row
/// `first + i * step` of it.
struct EncodedMatrix {
  std::string name;  ///< of the module that is written: "model.layers.0.mlp.experts.3.gate_proj"
  size_t module;     ///< in Plan::weights
  int64_t expert;
  int64_t first, step, rows, k;
  float input_scale = 0;                    ///< that is written; 0: none
  std::array<size_t, kEncodedParts> parts;  ///< in Plan::tensors
  static constexpr size_t kNoPart = SIZE_MAX;
  size_t part(EncodedPart p) const { return parts[static_cast<size_t>(p)]; }
};

/// Matrices [first, first + count) of Plan::matrices, which are multiplied as one and share a global scale.
struct EncodeGroup {
  size_t first, count;
};

}  // namespace twofour
