#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/dialect.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "lib/io/file.h"
#include "lib/findings/finding.h"
#include "lib/io/hash.h"

namespace twofour {

/// One safetensors file of a checkpoint, its header validated.
struct Shard {
  InputFile file;
  std::string name;     ///< within the directory
  uint64_t data_begin;  ///< offset of the data in the file
  Hash128 header_hash;  ///< of everything before the data
  size_t tensor_count;
  std::map<std::string, std::string> metadata;  ///< "format" and "twofour.layout", where it has them
  uint64_t data_bytes() const { return file.size() - data_begin; }
};

/// Forgets what of __metadata__ nobody asks for: a hostile file may have 100 MB of it.
void forget_unused_metadata(Shard& shard);

class ArtifactView;
struct IndexFile;

/// How weights come back from an artifact's layout: by loops made for it, or byte by byte through the
/// layout's map, so that a proof shares no code with the conversion that it proves.
enum class ReadPath { kFast, kReference };

/// Buffers that reading an artifact takes at a time. Other figures than these serve tests.
struct ViewLimits {
  uint64_t load = 1u << 20;        ///< bytes of the artifact that are taken apart at once
  uint64_t tile = 4u << 20;        ///< bytes of a tensor that are kept where little is asked for at a time
  uint64_t reference = 32u << 20;  ///< atoms that the reference path keeps
};

/// A Hugging Face checkpoint: a directory, or one safetensors file. Opening reads and validates headers and
/// index only; an object that exists is sound as far as those tell. Nothing of it is written.
class Checkpoint {
 public:
  /// Throws Error where a header is wrong, where the index names a file or tensor that isn't there or puts it
  /// in another file, where two files hold one name, and on directories that twofour left unfinished.
  static Checkpoint open(const std::filesystem::path& path, Io io = Io::kCached);

  /// The same, but an artifact in a layout shows the tensors and the config of the checkpoint that it was
  /// made from, unpacked as they are read: weights as far as the layout kept them, all else as it was. Throws
  /// Error where twofour.json doesn't fit the artifact; read() throws on metadata that is no two places in
  /// order, on padding that is not zero and on copies that differ.
  static Checkpoint open_source(const std::filesystem::path& path, ReadPath how = ReadPath::kFast,
                                const ViewLimits& limits = {}, Io io = Io::kCached);
  /// Whether the tensors come from an artifact's layout.
  bool is_view() const { return view_ != nullptr; }
  /// Bytes that each thread that reads may take beside its own buffers.
  uint64_t reader_bytes() const;

  const std::filesystem::path& path() const { return path_; }
  bool is_directory() const { return is_directory_; }
  const std::vector<Shard>& shards() const;
  /// All tensors, sorted by name.
  std::span<const TensorInfo> tensors() const { return tensors_; }
  const Shard& shard_of(size_t tensor) const { return shards()[shard_of_[tensor]]; }
  uint32_t shard_index_of(size_t tensor) const { return shard_of_[tensor]; }
  std::optional<size_t> find(std::string_view name) const { return find_tensor(tensors_, name); }
  /// The NVFP4 modules, in the order of their global scales' names.
  const std::vector<Nvfp4Module>& nvfp4_modules() const { return modules_; }
  /// config.json; null where there is none.
  const Json& config() const;
  /// hf_quant_config.json; null where there is none.
  const Json& hf_quant_config() const;
  /// Missing index entries, files the index doesn't name, modules that lack their global scale.
  const Findings& findings() const { return findings_; }

  /// "model-00003.safetensors: model.norm.weight", for messages.
  std::string where(size_t tensor) const;
  /// Reads bytes [offset, offset + out.size()) of a tensor. Safe from several threads.
  void read(size_t tensor, uint64_t offset, std::span<uint8_t> out) const;

 private:
  void open_shards(const std::vector<std::string>& names, Io io);
  void note_incomplete_modules();
  void open_indexed(const std::string& index_name, const IndexFile& index, Io io);

  std::filesystem::path path_;
  bool is_directory_ = false;
  std::vector<Shard> shards_;
  std::vector<TensorInfo> tensors_;
  std::vector<uint32_t> shard_of_;
  std::vector<Nvfp4Module> modules_;
  std::shared_ptr<Json> config_, hf_quant_config_;
  Findings findings_;
  std::shared_ptr<const ArtifactView> view_;
};

/// Present from the first byte of a run to its last; a directory that holds it is unfinished.
inline constexpr const char* kUnfinishedMarker = ".twofour-unfinished";
/// In a destination that tasks write: their plan, a record of each finished weight file, and a folder for
/// each task at work. Taken away before the marker is.
inline constexpr const char* kTasksFolder = ".twofour-tasks";
/// Which of these shows that twofour has not finished a directory; nullptr where it is complete or none of
/// ours.
const char* find_unfinished_sign(const std::filesystem::path& directory);
inline constexpr const char* kIndexName = "model.safetensors.index.json";
inline constexpr const char* kManifestName = "twofour.json";

}  // namespace twofour
