#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/dtype.h"

namespace twofour {

/// One tensor of a safetensors file. Offsets count from the start of the data, not from the start of the
/// file.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kU8;
  std::vector<int64_t> shape;  ///< empty for a scalar
  uint64_t begin = 0, end = 0;
  uint64_t bytes() const { return end - begin; }
};

/// A tensor's type and shape for messages: "F8_E4M3 [2048, 96]".
std::string describe(DType dtype, std::span<const int64_t> shape);
inline std::string describe(const TensorInfo& tensor) { return describe(tensor.dtype, tensor.shape); }

/// The header of a safetensors file. An object of this class is always valid: its tensors, in the order of
/// their offsets, cover the data exactly, without holes or overlaps, and nothing follows the last tensor.
struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;
  std::map<std::string, std::string> metadata;
};

/// The number of bytes before the JSON. They hold its length as a 64-bit little-endian integer.
inline constexpr uint64_t kSafetensorsPrefix = 8;
/// The longest JSON that readers accept, in bytes. Source: huggingface/safetensors, MAX_HEADER_SIZE.
inline constexpr uint64_t kSafetensorsMaxHeader = 100'000'000;

/// The number of bytes at the beginning of a file that identify files of other kinds. Pass fewer bytes only
/// if the file is shorter.
inline constexpr uint64_t kSafetensorsHead = 64;

/// Reads the length of the JSON from the first bytes of a file. `first` holds at least 8 bytes, and
/// `file_size` is in bytes. Throws Error naming `where`. If `first` holds kSafetensorsHead bytes, the message
/// also names the actual kind of the file: a Git LFS pointer, an HTML page, an archive, ...
uint64_t parse_safetensors_prefix(std::string_view where, std::span<const uint8_t> first, uint64_t file_size);

/// Limits of the longest name of a tensor, of the dimensions of a tensor, and of the entries of the metadata.
/// The reference reader has no such limits. Without them, a header could take many times its size in memory.
inline constexpr size_t kSafetensorsMaxName = 4096, kSafetensorsMaxRank = 64,
                        kSafetensorsMaxMetadata = 1 << 16;

/// Parses and validates the JSON of a file with `data_bytes` bytes of data. Beyond the limits above, it is
/// stricter than the reference reader in three points of the format: the JSON must begin with '{', keys must
/// not repeat, and a tensor has no fields but dtype, shape and data_offsets. Throws Error naming `where` and
/// the tensor.
SafetensorsHeader parse_safetensors_header(std::string_view where, std::string_view json,
                                           uint64_t data_bytes);

/// Parses the JSON without comparing it with the data. Offsets may leave holes, overlap, not fit types and
/// shapes, or point anywhere. For code that reports all faults instead of refusing the file.
SafetensorsHeader parse_safetensors_entries(std::string_view where, std::string_view json);

/// The order of tensors in a file that twofour writes. It is the order of the reference writer: wider types
/// first, then by name.
bool is_stored_before(const TensorInfo& a, const TensorInfo& b);

/// Sorts tensors by is_stored_before() and sets their offsets. Returns the number of bytes of all tensors.
/// Each `shape` and `dtype` must describe whole bytes.
uint64_t assign_offsets(std::vector<TensorInfo>& tensors);

/// Formats the bytes of a file before its data: the length, the JSON, and spaces up to a multiple of 8 bytes.
/// The result depends on the arguments alone. The tensors must have the offsets from assign_offsets().
std::string format_safetensors_header(std::span<const TensorInfo> tensors,
                                      const std::map<std::string, std::string>& metadata);

/// The number of bytes of a tensor. Throws Error naming `where` if the number overflows or is not an integer.
uint64_t tensor_bytes(std::string_view where, DType dtype, std::span<const int64_t> shape);

}  // namespace twofour
