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
#include "lib/findings/finding.h"
#include "lib/io/file.h"
#include "lib/io/file_states.h"
#include "lib/io/hash.h"
#include "lib/io/links.h"

namespace twofour {

/// How the zero points of INT4 are read.
enum class ZeroPoints {
  kAsStated,   ///< by the config's format; stored ones that the config contradicts are refused
  kStored,     ///< by the config's format, whatever the config says of them
  kSymmetric,  ///< 8, whatever is stored
  kV2,         ///< as they are stored, without the 1 that GPTQ's first version adds
};
/// "stored", "symmetric", "v2": the words of all but kAsStated, which has none.
std::span<const std::string_view> zero_points_words();
/// "" of kAsStated.
std::string_view zero_points_word(ZeroPoints zero_points);
/// kAsStated of an empty word. Throws Error on one that is not known.
ZeroPoints parse_zero_points(std::string_view word);

/// Codes that an entry of a file's __metadata__ describes beside types and shapes, as ComfyUI's
/// "_quantization_metadata" does: no reader of codes takes them by it.
struct DescribedCodes {
  std::string key;  ///< of the entry
  bool all = true;  ///< of every module of the file
  /// Else of these, in any file, sorted; `shortened` without what may be before them in the entry alone.
  std::vector<std::string> modules{}, shortened{};
  /// Whether a module is one of them, by its name or what is left of it without its first parts.
  bool has(std::string_view module) const;
};

/// One safetensors file of a checkpoint, its header validated.
struct Shard {
  InputFile file;
  std::string name;     ///< within the directory
  uint64_t data_begin;  ///< offset of the data in the file
  Hash128 header_hash;  ///< of everything before the data
  size_t tensor_count;
  std::map<std::string, std::string> metadata;  ///< "format" and "twofour.layout", where it has them
  std::vector<DescribedCodes> described{};
  uint64_t data_bytes() const { return file.size() - data_begin; }
};

/// Takes from __metadata__ what it says of codes, and drops the entries that twofour does not use: a hostile
/// file may have 100 MB of them.
void digest_metadata(Shard& shard);

struct IndexFile;
class Checkpoint;

/// Rows [begin, end) of a matrix, inputs [k0, k1) of them.
struct RowRange {
  int64_t begin, end, k0, k1;
};

/// Where the tensors of a checkpoint come from that are not the bytes of its files: an artifact's layout, a
/// choice of tensors of one or two checkpoints, or weights that are quantized as they are read.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  /// The checkpoint with the files that hold the bytes.
  virtual const Checkpoint& stored() const = 0;
  /// The files that hold the bytes.
  virtual const std::vector<Shard>& shards() const;
  /// As Checkpoint::check_same_files, of all checkpoints that it shows something of.
  virtual void check_same_files() const;
  /// Reads bytes [offset, offset + out.size()) of a tensor. Safe from several threads.
  virtual void read(size_t tensor, uint64_t offset, std::span<uint8_t> out) const = 0;
  /// Bytes that each thread that reads may take beside its own buffers.
  virtual uint64_t reader_bytes() const = 0;
  /// Whether it is another checkpoint than the files hold, so that twofour.json beside them does not describe
  /// it.
  virtual bool is_another() const { return true; }
  /// Bytes that are read to compute a tensor that is computed from others, a module's with its codes; nothing
  /// for one that is stored.
  virtual std::optional<uint64_t> computed_from(size_t) const { return std::nullopt; }
  /// Rows of an NVFP4 module by its codes, which are computed: `codes` [rows, (k1 - k0) / 2], `scales` [rows,
  /// (k1 - k0) / 16]. Safe from several threads.
  virtual void read_rows(size_t codes_tensor, const RowRange& rows, std::span<uint8_t> codes,
                         std::span<uint8_t> scales) const;
  /// What computing a module by its codes found, as twofour.json notes it, once its rows were read; null:
  /// nothing that is noted.
  virtual Json computed_result(size_t) const { return nullptr; }
  /// What was found on computing tensors so far, for people.
  virtual Findings computed_findings() const { return {}; }
  /// Config files of which the bytes are known, by name; others are written from their values.
  virtual std::map<std::string, std::string> config_texts() const { return {}; }
  /// What twofour.json notes of the source beside its files, an object; null: nothing.
  virtual Json source_note() const { return nullptr; }
  /// As Checkpoint::links_outside, of all checkpoints that have a part in it.
  virtual std::vector<LinkOutside> links_outside() const;
};

/// A Hugging Face checkpoint: a directory, or one safetensors file. Opening reads and validates headers and
/// index only; an object that exists is sound as far as they show. The files are never written.
class Checkpoint {
 public:
  /// Throws Error where a header is wrong, where the index names a file or tensor that isn't there or puts it
  /// in another file, where two files hold one name, and on directories that twofour left unfinished.
  static Checkpoint open(const std::filesystem::path& path, Io io = Io::kCached,
                         ZeroPoints zero_points = ZeroPoints::kAsStated);

  /// A checkpoint at `path`. `source` reads its tensors, which are sorted by name; `shards` are the files
  /// that `source` stores them in.
  static Checkpoint over(std::shared_ptr<const TensorSource> source, std::vector<TensorInfo> tensors,
                         std::vector<uint32_t> shards, Json config, Json hf_quant_config, Findings findings);
  /// Whether the tensors come from a TensorSource that shows another checkpoint than its files hold.
  bool is_view() const { return source_ != nullptr && source_->is_another(); }
  /// Bytes that each thread that reads may take beside its own buffers.
  uint64_t reader_bytes() const;

  const std::filesystem::path& path() const { return path_; }
  /// How the zero points of its INT4 are read; a view reads them as the checkpoint below it.
  ZeroPoints zero_points() const { return zero_points_; }
  bool is_directory() const { return is_directory_; }
  const std::vector<Shard>& shards() const;
  /// Throws Error where a weight file was written to since it was opened.
  void check_unchanged() const;
  /// Throws Error where a file of its directory was removed, replaced, written to or added since before it
  /// was opened: after other files were opened by name, or this checkpoint once more, all are of one state.
  void check_same_files() const;
  /// The files of its directory, or its one file, before the first was opened; nullptr of a view.
  std::shared_ptr<const FileStates> states() const { return states_; }
  /// Gives its files away: what is left has names and config, and cannot be read.
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
  /// What both say of how its values are read: themselves or, of one file, those of its folder, which belong
  /// to no output.
  const Json& config_of_values() const;
  const Json& hf_quant_config_of_values() const;
  /// Missing index entries, files the index doesn't name, modules that lack their global scale.
  const Findings& findings() const { return findings_; }
  /// Config files that links out of the directory led to when they were read. What they say is read; it goes
  /// into an output with Links::kFollowed only.
  const std::vector<LinkOutside>& links_outside() const { return links_outside_; }
  /// Opens a file of the directory again. Throws Error where it leads out of it by now.
  InputFile open_again(const char* name) const;

  /// "model-00003.safetensors: model.norm.weight", for messages.
  std::string where(size_t tensor) const;
  /// Reads bytes [offset, offset + out.size()) of a tensor. Safe from several threads.
  void read(size_t tensor, uint64_t offset, std::span<uint8_t> out) const;
  /// Whether a module's tensors are computed as they are read: planning reads none of them.
  bool is_computed(const Nvfp4Linear& module) const { return computed_from(module).has_value(); }
  /// What was found on computing tensors so far: a finding of each kind, with the first module.
  Findings computed_findings() const { return source_ ? source_->computed_findings() : Findings{}; }
  /// As TensorSource::config_texts and TensorSource::source_note; of a checkpoint of files nothing.
  std::map<std::string, std::string> config_texts() const;
  Json source_note() const { return source_ ? source_->source_note() : Json(nullptr); }
  /// Bytes that are read to compute a module, if it is computed.
  std::optional<uint64_t> computed_from(const Nvfp4Linear& module) const;
  /// Rows of a module that is computed, as TensorSource::read_rows.
  void read_rows(const Nvfp4Linear& module, const RowRange& rows, std::span<uint8_t> codes,
                 std::span<uint8_t> scales) const;
  /// As TensorSource::computed_result.
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
  std::shared_ptr<Beside> beside_;  ///< of one file: the configs of its folder
  std::shared_ptr<const FileStates> states_;
  Findings findings_;
  std::vector<LinkOutside> links_outside_;
  std::shared_ptr<const TensorSource> source_;
};

/// The journal, present from the first byte of a run to its last. A directory that has it is unfinished.
inline constexpr const char* kJournalName = ".twofour-unfinished";
/// In a destination that tasks write: their plan, a record of each finished weight file, and a folder for
/// each task at work. Removed before the journal.
inline constexpr const char* kTasksFolder = ".twofour-tasks";
/// The name of the file that marks a directory as unfinished, one of these; nullptr if it is complete or not
/// ours.
const char* find_unfinished(const std::filesystem::path& directory);
inline constexpr const char* kIndexName = "model.safetensors.index.json";
inline constexpr const char* kManifestName = "twofour.json";

}  // namespace twofour
