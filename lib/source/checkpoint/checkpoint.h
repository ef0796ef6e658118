#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/dialect.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "lib/base/findings/finding.h"
#include "lib/base/io/file.h"
#include "lib/base/io/file_states.h"
#include "lib/base/io/hash.h"
#include "lib/base/io/links.h"

namespace twofour {

/// How the zero points of INT4 are read.
enum class ZeroPoints {
  kAsStated,   ///< by the config's format; refused if the config contradicts stored ones
  kStored,     ///< by the config's format, even if the config contradicts them
  kSymmetric,  ///< always 8, whatever is stored
  kV2,         ///< as stored, without the 1 that GPTQ's first version adds
};
/// "stored", "symmetric", "v2": the command line's values. kAsStated has none.
std::span<const std::string_view> zero_points_words();
/// The value's name; "" for kAsStated.
std::string_view zero_points_word(ZeroPoints zero_points);
/// kAsStated for an empty word. Throws Error on an unknown word.
ZeroPoints parse_zero_points(std::string_view word);

/// Codes that an entry of a file's __metadata__ describes in addition to types and shapes, for example
/// ComfyUI's "_quantization_metadata". No reader of codes uses such an entry.
struct DescribedCodes {
  std::string key;  ///< the entry's key
  bool all = true;  ///< the entry covers every module of the file
  /// Otherwise it covers these modules, in any file, sorted. `shortened`: without prefixes that only the
  /// entry may have.
  std::vector<std::string> modules{}, shortened{};
  /// True if the entry covers a module, by its name or by its name without its first parts.
  bool has(std::string_view module) const;
};

/// One safetensors file of a checkpoint, its header validated.
struct Shard {
  InputFile file;
  std::string name;     ///< name within the directory
  uint64_t data_begin;  ///< offset of the data in the file
  Hash128 header_hash;  ///< hash of everything before the data
  size_t tensor_count;
  std::map<std::string, std::string> metadata;  ///< "format" and "twofour.layout", if present
  std::vector<DescribedCodes> described{};
  uint64_t data_bytes() const { return file.size() - data_begin; }
};

/// Reads descriptions of codes from __metadata__ and drops the entries that twofour does not use: a hostile
/// file may have 100 MB of them.
void digest_metadata(Shard& shard);

struct IndexFile;
class Checkpoint;

/// Rows [begin, end) of a matrix, inputs [k0, k1) of them.
struct RowRange {
  int64_t begin, end, k0, k1;
};

/// The source of a checkpoint's tensors if they are not the bytes of its files: an artifact's layout, a
/// choice of tensors from one or two checkpoints, or weights that are quantized as they are read.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  /// The checkpoint with the files that hold the bytes.
  virtual const Checkpoint& stored() const = 0;
  /// The files that hold the bytes.
  virtual const std::vector<Shard>& shards() const;
  /// Checkpoint::check_same_files() for every checkpoint behind this source.
  virtual void check_same_files() const;
  /// Reads bytes [offset, offset + out.size()) of a tensor. Safe from several threads.
  virtual void read(size_t tensor, uint64_t offset, std::span<uint8_t> out) const = 0;
  /// Bytes that each reading thread may allocate in addition to its own buffers.
  virtual uint64_t reader_bytes() const = 0;
  /// True if this is another checkpoint than the one in the files, so that twofour.json beside them does not
  /// describe it.
  virtual bool is_another() const { return true; }
  /// Bytes read to compute a tensor from others, together with its module's codes; nullopt for a stored
  /// tensor.
  virtual std::optional<uint64_t> computed_from(size_t) const { return std::nullopt; }
  /// Reads rows of an NVFP4 module with computed codes, which identify it: `codes` [rows, (k1 - k0) / 2],
  /// `scales` [rows, (k1 - k0) / 16]. Safe from several threads.
  virtual void read_rows(size_t codes_tensor, const RowRange& rows, std::span<uint8_t> codes,
                         std::span<uint8_t> scales) const;
  /// The result of computing a module, identified by its codes, as twofour.json records it. Available once
  /// its rows were read; null: nothing to record.
  virtual Json computed_result(size_t) const { return nullptr; }
  /// Findings for people from the tensors computed so far.
  virtual Findings computed_findings() const { return {}; }
  /// Config files with known bytes, by name. Others are written from their values.
  virtual std::map<std::string, std::string> config_texts() const { return {}; }
  /// The record of the source in twofour.json in addition to its files, an object; null: nothing.
  virtual Json source_note() const { return nullptr; }
  /// Checkpoint::links_outside() of every checkpoint behind this source.
  virtual std::vector<LinkOutside> links_outside() const;
};

/// A Hugging Face checkpoint: a directory, or one safetensors file. Opening reads and validates only headers
/// and index, so every object is sound as far as these show. The files are never written.
class Checkpoint {
 public:
  /// Throws Error if a header is wrong, if the index names a missing file or tensor or puts a tensor in
  /// another file, if two files hold one name, and on directories that twofour left unfinished.
  static Checkpoint open(const std::filesystem::path& path, Io io = Io::kCached,
                         ZeroPoints zero_points = ZeroPoints::kAsStated);

  /// A checkpoint at `path`. `source` reads its tensors, which are sorted by name. `shards`: the file of each
  /// tensor in `source`.
  static Checkpoint over(std::shared_ptr<const TensorSource> source, std::vector<TensorInfo> tensors,
                         std::vector<uint32_t> shards, Json config, Json hf_quant_config, Findings findings);
  /// True if the tensors come from a TensorSource that shows another checkpoint than the one in its files.
  bool is_view() const { return source_ != nullptr && source_->is_another(); }
  /// Bytes that each reading thread may allocate in addition to its own buffers.
  uint64_t reader_bytes() const;

  const std::filesystem::path& path() const { return path_; }
  /// How zero points of INT4 are read. A view reads them as the checkpoint below it does.
  ZeroPoints zero_points() const { return zero_points_; }
  bool is_directory() const { return is_directory_; }
  const std::vector<Shard>& shards() const;
  /// Throws Error if a weight file was written to since it was opened.
  void check_unchanged() const;
  /// Throws Error if a file of the directory was removed, replaced, written to or added since before the
  /// checkpoint was opened. A caller that opens other files by name, or the checkpoint again, calls it to
  /// know that all files are of one state.
  void check_same_files() const;
  /// The states of the directory's files, or of the one file, before the first was opened; nullptr for a
  /// view.
  std::shared_ptr<const FileStates> states() const { return states_; }
  /// Gives its files away. The checkpoint still has names and config, but its tensors cannot be read.
  std::vector<Shard> take_shards() && { return std::move(shards_); }
  /// All tensors, sorted by name.
  std::span<const TensorInfo> tensors() const { return tensors_; }
  const Shard& shard_of(size_t tensor) const { return shards()[shard_of_[tensor]]; }
  uint32_t shard_index_of(size_t tensor) const { return shard_of_[tensor]; }
  std::optional<size_t> find(std::string_view name) const { return find_tensor(tensors_, name); }
  /// The NVFP4 modules, in the order of their global scales' names.
  const std::vector<Nvfp4Linear>& nvfp4_modules() const { return modules_; }
  /// config.json; null if it is absent.
  const Json& config() const;
  /// hf_quant_config.json; null if it is absent.
  const Json& hf_quant_config() const;
  /// The two configs by which values are read: the checkpoint's own or, for a checkpoint of one file, the
  /// configs of its folder, which belong to no output.
  const Json& config_of_values() const;
  const Json& hf_quant_config_of_values() const;
  /// Missing index entries, files the index doesn't name, modules that lack their global scale.
  const Findings& findings() const { return findings_; }
  /// Config files that were read through links out of the directory. Their values are used, but they are
  /// copied into an output only with Links::kFollowed.
  const std::vector<LinkOutside>& links_outside() const { return links_outside_; }
  /// Opens a file of the directory again. Throws Error if it now leads out of the directory.
  InputFile open_again(const char* name) const;

  /// "model-00003.safetensors: model.norm.weight", for messages.
  std::string where(size_t tensor) const;
  /// Reads bytes [offset, offset + out.size()) of a tensor. Safe from several threads.
  void read(size_t tensor, uint64_t offset, std::span<uint8_t> out) const;
  /// True if a module's tensors are computed as they are read. Planning reads none of them.
  bool is_computed(const Nvfp4Linear& module) const { return computed_from(module).has_value(); }
  /// Findings from the tensors computed so far: one of each kind, with the first module.
  Findings computed_findings() const { return source_ ? source_->computed_findings() : Findings{}; }
  /// TensorSource::config_texts() and TensorSource::source_note(); empty without a source.
  std::map<std::string, std::string> config_texts() const;
  Json source_note() const { return source_ ? source_->source_note() : Json(nullptr); }
  /// Bytes read to compute a module; nullopt if it is stored.
  std::optional<uint64_t> computed_from(const Nvfp4Linear& module) const;
  /// Reads rows of a computed module as TensorSource::read_rows() does.
  void read_rows(const Nvfp4Linear& module, const RowRange& rows, std::span<uint8_t> codes,
                 std::span<uint8_t> scales) const;
  /// TensorSource::computed_result() of a module.
  Json computed_result(const Nvfp4Linear& module) const;

 private:
  std::shared_ptr<Json> read_config(const char* name);
  void open_shards(const std::vector<std::string>& names, Io io);
  void note_incomplete_modules();
  void open_indexed(const std::string& index_name, const IndexFile& index, Io io);

  std::filesystem::path path_;
  bool is_directory_ = false;
  ZeroPoints zero_points_ = ZeroPoints::kAsStated;
  std::vector<Shard> shards_;
  std::vector<TensorInfo> tensors_;
  std::vector<uint32_t> shard_of_;
  std::vector<Nvfp4Linear> modules_;
  std::shared_ptr<Json> config_, hf_quant_config_;
  struct Beside;
  const Beside& beside() const;
  std::shared_ptr<Beside> beside_;  ///< for a checkpoint of one file: the configs of its folder
  std::shared_ptr<const FileStates> states_;
  Findings findings_;
  std::vector<LinkOutside> links_outside_;
  std::shared_ptr<const TensorSource> source_;
};

/// The journal, present from the first byte of a run to its last. A directory that has it is unfinished.
inline constexpr const char* kJournalName = ".twofour-unfinished";
/// A folder in a destination that tasks write: their plan, a record of each finished weight file, and a
/// folder for each running task. Removed before the journal.
inline constexpr const char* kTasksFolder = ".twofour-tasks";
/// The one of these two names that marks a directory as unfinished; nullptr if the directory is complete or
/// not written by twofour.
const char* find_unfinished(const std::filesystem::path& directory);
inline constexpr const char* kIndexName = "model.safetensors.index.json";
inline constexpr const char* kManifestName = "twofour.json";

}  // namespace twofour
