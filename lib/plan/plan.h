#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "formats/safetensors.h"
#include "kernels/device/device.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/encode_plan.h"
#include "lib/findings/finding.h"
#include "lib/methods/target.h"
#include "lib/checkpoint/linears.h"

namespace twofour {

/// What to do about unequal global scales of gate and up.
enum class Fold { kLarger, kStrict };

/// Everything that decides the bytes of an artifact. Jobs, device and paths are no part of it.
struct Recipe {
  std::string layout = "v7";     ///< a layout, or what a checkpoint becomes: see Rewrite
  std::string pattern = {};      ///< prune: "2:4" or "4:8-paired"; quantize: "2:4" or none
  std::string dialect = {};      ///< nvfp4, fp8, quantize: of what is written
  std::string granularity = {};  ///< fp8: "tensor", "row" or "block"
  std::string arithmetic = {};   ///< quantize: "modelopt" or "compressed-tensors"; empty: the dialect's
  std::string block_scale = {};  ///< quantize: "max" (or empty), "mse" or "four-over-six"
  std::string zero_block = {};   ///< quantize: "producer" (or empty) or "zero"
  KeptScales kept = {};          ///< quantize: global scales that are given
  Selection selection;
  Fold fold = Fold::kLarger;
  uint64_t max_shard_size = 5'000'000'000;
};

/// Conversions that keep a checkpoint a checkpoint: module by module, under the model's own names.
enum class Rewrite { kNone, kPrune, kNvfp4, kBf16, kFp8, kQuantize };
/// What a recipe's `layout` names; kNone for a layout and for what is neither.
Rewrite rewrite_of(const std::string& layout);

/// Global scales of a target, as multipliers. All are [E][sources_per_expert] but `folded`, which is [E].
struct TargetScales {
  std::vector<uint32_t> stored_bits;  ///< float32 bits as the source has them
  std::vector<float> own;
  std::vector<float> folded;  ///< the larger of gate and up: what the artifact stores
};

/// How a range of bytes of a rewritten tensor comes from the source: see lib/derive.h.
enum class Op {
  kNone,
  kBlockScales,  ///< as they are, refused where they are none
  kPrune,        ///< codes by the recipe's pattern
  kReciprocal,   ///< F32: 1/x, or what x was made from
  kToF32,        ///< of F32, BF16 or F16
  kToBf16,
  kDequantize,  ///< weights in BF16
};

/// An NVFP4 module that is rewritten.
struct ModulePlan {
  size_t module;                      ///< in Checkpoint::nvfp4_modules()
  std::vector<uint32_t> stored_bits;  ///< of the global scales, one or one an expert
  std::vector<float> multipliers;     ///< one an expert
  uint32_t input_scale_bits = 0;  ///< of the input scale as stored, where it becomes its reciprocal; else 0
};

/// One tensor of the artifact.
struct OutputTensor {
  enum class Kind { kCopy, kPart, kGlobalScale, kDerived, kEncoded };
  TensorInfo info;  ///< offsets within its file's data
  Kind kind;
  size_t source;  ///< kCopy, kDerived: a tensor of the source; kEncoded: of Plan::matrices; else a target
  int part;       ///< kPart; kEncoded: EncodedPart
  uint32_t file;  ///< which output file
  Op op = Op::kNone;
  size_t module = kNoModule;  ///< kCopy, kDerived: in Plan::modules, of what a rewritten module consists of
  /// kReciprocal: of the float32 that the source is the reciprocal of and was made from; 0: not known
  uint32_t remembered_bits = 0;
  static constexpr size_t kNoModule = SIZE_MAX;
};

/// One weight file of the artifact.
struct OutputFile {
  std::string name;
  std::string header;  ///< everything before the data
  uint64_t data_bytes = 0;
  size_t first_tensor = 0, tensor_count = 0;  ///< in Plan::tensors
  uint64_t size() const { return header.size() + data_bytes; }
};

/// What the promised memory is made of. Other figures than these serve tests.
struct MemoryLimits {
  /// Buffers of all workers together. The rest of the promised 512 MiB is for names, headers and the program.
  uint64_t buffers = 320u << 20;
  /// Largest piece of an expert that a worker packs at once, source and result together.
  uint64_t piece = 64u << 20;
};

/// How a target's experts are cut into pieces that fit the memory promised.
struct Tiling {
  int64_t k_step;      ///< inputs that a piece covers and
  int64_t row_step;    ///< stored rows: all of both, except of giants
  int64_t strip_rows;  ///< rows of a module read at once
  uint64_t bytes;      ///< a worker's buffers
  uint64_t stage;      ///< a further stage, which a worker has on Device::cuda, where buffers are page-locked
};

/// Every file, tensor and offset of an artifact, fixed before a byte is written.
struct Plan {
  Recipe recipe;
  MemoryLimits limits;
  std::vector<Target> targets;
  std::vector<TargetScales> scales;      ///< one a target
  std::vector<Tiling> tilings;           ///< one a target
  std::vector<ModulePlan> modules;       ///< that are rewritten; then there are no targets
  bool keeps_dialect = false;            ///< nvfp4 of an artifact, in its source's dialect: all is as it was
  std::vector<size_t> merged;            ///< tensors of the source that live on inside others alone
  std::vector<WeightModule> weights;     ///< that are encoded; then there are neither targets nor modules
  std::vector<EncodedMatrix> matrices;   ///< made of them
  std::vector<EncodeGroup> groups;       ///< all of them, in order
  std::vector<std::string> unquantized;  ///< linears that stay as they are beside them, names and globs
  std::vector<OutputFile> files;
  std::vector<OutputTensor> tensors;         ///< in file and offset order
  std::map<std::string, uint64_t> sidecars;  ///< other files that are copied, with their sizes
  Findings findings;                         ///< folds, passed-through NVFP4, files left behind
  uint64_t data_bytes = 0;                   ///< of all tensors written
  uint64_t read_bytes = 0;                   ///< of all tensors read
  /// Positions in `tensors` of the parts of a target.
  const std::vector<size_t>& parts_of(size_t target) const { return parts_[target]; }
  uint64_t reader_bytes = 0;  ///< of a worker, beside its own buffers: Checkpoint::reader_bytes
  /// Positions in `tensors` of what is written of a group's matrices.
  std::vector<size_t> tensors_of(const EncodeGroup& group) const;
  uint64_t derive_bytes = 0;  ///< largest buffers that a range of a rewritten tensor or a group takes
  /// Upper bound of the run's memory for a number of jobs.
  uint64_t peak_memory(int jobs, Device device = Device::cpu) const;
  /// Workers that the promised memory allows.
  int workers(int jobs, Device device = Device::cpu) const;

  uint64_t worker_bytes(Device device) const;
  std::vector<std::vector<size_t>> parts_;  ///< what parts_of() gives
};

/// Plans an artifact. Reads headers, global and input scales and, of a source that twofour wrote,
/// twofour.json only. Throws Error where product.md refuses the source and where that twofour.json is damaged
/// or another's.
Plan make_plan(const Checkpoint& source, const Recipe& recipe, const MemoryLimits& limits = {});

/// `size` bytes, decimal: "5GB", "500MB", "1234". Throws Error.
uint64_t parse_size(const std::string& text);

}  // namespace twofour
