#pragma once
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lib/base/io/file.h"
#include "lib/base/io/hash.h"

namespace twofour {

/// Codes that an entry of a file's __metadata__ describes, such as ComfyUI's "_quantization_metadata". The
/// entry adds something to the tensors' types and shapes. twofour's readers of codes use no such entry.
struct DescribedCodes {
  std::string key;  ///< key of the entry
  bool all = true;  ///< the entry covers every module of the file
  /// If `all` is false, the modules that the entry covers, in any file, sorted. `shortened` has their names
  /// without prefixes that only the entry may have.
  std::vector<std::string> modules{}, shortened{};
  /// True if the entry covers a module, by the module's name or by this name without its first parts.
  bool has(std::string_view module) const;
};

/// One safetensors file of a checkpoint, its header validated.
struct Shard {
  InputFile file;
  std::string name;     ///< name within the directory
  uint64_t data_begin;  ///< offset of the data in the file
  Hash128 header_hash;  ///< hash of everything before the data
  size_t tensor_count;
  /// The entries "format" and "twofour.layout" of the header's __metadata__, if they exist.
  std::map<std::string, std::string> metadata;
  std::vector<DescribedCodes> described{};
  uint64_t data_bytes() const { return file.size() - data_begin; }
};

/// Reads the descriptions of codes from the shard's __metadata__ and drops all entries that twofour does not
/// use. A hostile file may have 100 MB of them.
void digest_metadata(Shard& shard);

}  // namespace twofour
