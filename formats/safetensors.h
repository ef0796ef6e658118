#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/dtype.h"

namespace twofour {

/// One tensor of a safetensors file. Offsets count from the start of the data, not of the file.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;  ///< empty for a scalar
  uint64_t begin = 0, end = 0;
  uint64_t bytes() const { return end - begin; }
};

/// "F8_E4M3 [2048, 96]"
std::string describe(DType dtype, std::span<const int64_t> shape);
inline std::string describe(const TensorInfo& tensor) { return describe(tensor.dtype, tensor.shape); }

/// The header of a safetensors file: an object that exists is valid. The tensors, in the order of their
/// offsets, cover the data exactly: no hole, no overlap, nothing behind the last.
struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
};

/// Bytes before the JSON: its length, 64 bits little-endian.
inline constexpr uint64_t kSafetensorsPrefix = 8;
/// Longest JSON that readers accept. Source: huggingface/safetensors, MAX_HEADER_SIZE.
inline constexpr uint64_t kSafetensorsMaxHeader = 100'000'000;

/// Bytes at the beginning of a file that identify other kinds of files. Pass fewer only if the file is
/// shorter.
inline constexpr uint64_t kSafetensorsHead = 64;

/// Length of the JSON, from the first 8 bytes or more of a file of `file_size` bytes. Throws Error naming
/// `where` and, if given kSafetensorsHead bytes, the actual kind of the file: a Git LFS pointer, an HTML
/// page, an archive, ...
uint64_t parse_safetensors_prefix(std::string_view where, std::span<const uint8_t> first, uint64_t file_size);

/// Longest name of a tensor, most dimensions of one, and most entries of the metadata. The reference reader
/// has no such limits; without them a header could take many times its size in memory.
inline constexpr size_t kSafetensorsMaxName = 4096, kSafetensorsMaxRank = 64,
                        kSafetensorsMaxMetadata = 1 << 16;

/// Parses and validates the JSON of a file with `data_bytes` behind it. Stricter than the reference reader in
/// three points of the written format and in the limits above: it must begin with '{', keys must not repeat,
/// and a tensor has no fields but dtype, shape and data_offsets. Throws Error naming `where` and the tensor.
SafetensorsHeader parse_safetensors_header(std::string_view where, std::string_view json,
                                           uint64_t data_bytes);

/// Parses the JSON without comparing it with the data: offsets may leave holes, overlap, not fit types and
/// shapes, or point anywhere. For code that reports all faults instead of refusing the file.
SafetensorsHeader parse_safetensors_entries(std::string_view where, std::string_view json);

/// Puts tensors into the reference writer's order (wider types first, then by name) and sets their offsets.
/// Returns the bytes of all. `shape` and `dtype` must describe whole bytes.
uint64_t assign_offsets(std::vector<TensorInfo>& tensors);

/// The bytes of a file before its data: length, JSON, spaces up to a multiple of 8. They depend on the
/// arguments alone. The tensors must have the offsets from assign_offsets.
std::string format_safetensors_header(std::span<const TensorInfo> tensors,
                                      const std::map<std::string, std::string>& metadata);

/// Bytes of a tensor. Throws Error naming `where` if they overflow or are not whole.
uint64_t tensor_bytes(std::string_view where, DType dtype, std::span<const int64_t> shape);

}  // namespace twofour
