#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
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
#include "lib/base/io/links.h"
#include "lib/source/checkpoint/shard.h"

namespace twofour {

/// The ways to read the zero points of INT4 weights.
enum class ZeroPoints {
  kAsStated,   ///< as the config's format defines them; Error if the config contradicts stored zero points
  kStored,     ///< as the config's format defines them, even if the config contradicts them
  kSymmetric,  ///< all are 8, whatever is stored
  kV2,         ///< as stored, without the 1 that the first version of GPTQ's format adds
};
/// The words on the command line for these ways: "stored", "symmetric", "v2". kAsStated has no word.
std::span<const std::string_view> zero_points_words();
/// The word for `zero_points`; "" for kAsStated.
std::string_view zero_points_word(ZeroPoints zero_points);
/// The way that a word names; kAsStated for "". Throws Error on an unknown word.
ZeroPoints parse_zero_points(std::string_view word);

struct IndexFile;
class Checkpoint;

/// A block of a matrix: rows [begin, end), and of these rows the inputs [k0, k1).
struct RowRange {
  int64_t begin, end, k0, k1;
};

/// The source of a checkpoint's tensors if they are not simply the bytes of its files. It may be an
/// artifact's layout, a selection of tensors from one or two checkpoints, or weights that are quantized as
/// they are read.
class TensorSource {
 public:
  virtual ~TensorSource() = default;
  /// The checkpoint with the files that hold the bytes.
  virtual const Checkpoint& stored() const = 0;
  /// The files that hold the bytes.
  virtual const std::vector<Shard>& shards() const;
  /// Calls Checkpoint::check_same_files() for every checkpoint behind this source.
  virtual void check_same_files() const;
  /// Reads bytes [offset, offset + out.size()) of a tensor. Several threads may call it at once.
  virtual void read(size_t tensor, uint64_t offset, std::span<uint8_t> out) const = 0;
  /// Bytes that each reading thread may allocate in addition to its own buffers.
  virtual uint64_t reader_bytes() const = 0;
  /// True if the tensors form another checkpoint than the one in the files. Then a twofour.json beside the
  /// files does not describe these tensors.
  virtual bool is_another() const { return true; }
  /// The number of bytes that are read to compute a tensor from others, together with the codes of its
  /// module; nullopt if the tensor is stored.
  virtual std::optional<uint64_t> computed_from(size_t) const { return std::nullopt; }
  /// Reads rows of an NVFP4 module whose codes are computed; `codes_tensor` identifies the module. Fills
  /// `codes` [rows, (k1 - k0) / 2] and `scales` [rows, (k1 - k0) / 16]. Several threads may call it at once.
  virtual void read_rows(size_t codes_tensor, const RowRange& rows, std::span<uint8_t> codes,
                         std::span<uint8_t> scales) const;
  /// The record in twofour.json about computing the module with these codes. Available once all rows of the
  /// module were read. null: there is nothing to record.
  virtual Json computed_result(size_t) const { return nullptr; }
  /// Findings, for messages, about the tensors computed so far.
  virtual Findings computed_findings() const { return {}; }
  /// The texts of config files whose bytes are known, by file name. Other config files are written from their
  /// values.
  virtual std::map<std::string, std::string> config_texts() const { return {}; }
  /// An object that twofour.json records about the source in addition to its files; null: none.
  virtual Json source_note() const { return nullptr; }
  /// The files of the directory without weights that an output does not get, by relative name.
  virtual std::set<std::string> dropped_files() const { return {}; }
  /// Weight files of the directory that an output gets as they are, beside its own. They have none of the
  /// tensors.
  virtual std::set<std::string> kept_files() const { return {}; }
  /// True if modules whose tensors disagree are left out of Checkpoint::nvfp4_modules(). Otherwise they are
  /// an Error.
  virtual bool may_be_broken() const { return false; }
  /// Returns Checkpoint::links_outside() of every checkpoint behind this source.
  virtual std::vector<LinkOutside> links_outside() const;
};

/// The result of Checkpoint::open_loosely().
struct LooseFiles {
  /// A tensor of a name that another tensor has.
  struct Duplicate {
    TensorInfo info;
    uint32_t shard;  ///< position of its file
    size_t of;       ///< position in Checkpoint::tensors() of the tensor of that name
  };
  std::vector<Duplicate> duplicates;
  std::string index;                ///< name of the usable index; empty: there is none
  std::vector<uint32_t> unindexed;  ///< positions of the files that the index does not name
  std::set<std::string>
      unreadable;  ///< configs that are no JSON objects; before opening, weight files to leave out
};

/// A Hugging Face checkpoint: a directory, or one safetensors file. Opening it reads and validates only
/// headers and index. So every object is valid as far as headers and index show. The files are never written.
class Checkpoint {
 public:
  /// Throws Error if a header is invalid, if the index names a missing file or tensor, if it states another
  /// file for a tensor than the one that has it, if two files have a tensor of one name, and on a directory
  /// that twofour left unfinished.
  static Checkpoint open(const std::filesystem::path& path, Io io = Io::kCached,
                         ZeroPoints zero_points = ZeroPoints::kAsStated);

  /// Opens a directory whose index may be wrong or missing, whose files may hold tensors twice, and whose
  /// configs may be no JSON. It has every weight file of the directory, and of tensors of one name the one
  /// that the index names, otherwise the first. Throws Error if a header is invalid, and on a directory that
  /// twofour left unfinished.
  static Checkpoint open_loosely(const std::filesystem::path& path, Io io, LooseFiles& found);

  /// Makes a checkpoint at `path` of `source`, which reads the tensors. `tensors` are sorted by name.
  /// `shards` has the position of each tensor's file in source->shards().
  static Checkpoint over(std::shared_ptr<const TensorSource> source, std::vector<TensorInfo> tensors,
                         std::vector<uint32_t> shards, Json config, Json hf_quant_config, Findings findings);
  /// True if the tensors come from a TensorSource that shows another checkpoint than the one in its files.
  bool is_view() const { return source_ != nullptr && source_->is_another(); }
  /// Bytes that each reading thread may allocate in addition to its own buffers.
  uint64_t reader_bytes() const;

  const std::filesystem::path& path() const { return path_; }
  /// The way in which zero points of INT4 are read. A view uses that of the checkpoint below it.
  ZeroPoints zero_points() const { return zero_points_; }
  bool is_directory() const { return is_directory_; }
  const std::vector<Shard>& shards() const;
  /// Throws Error if a weight file was written to after it was opened.
  void check_unchanged() const;
  /// Throws Error if a file of the directory was removed, replaced, written to or added since shortly before
  /// the checkpoint was opened. A caller that opens other files by name, or the checkpoint again, calls it to
  /// know that all files are of one state.
  void check_same_files() const;
  /// The states of the directory's files, or of the one file, before the first file was opened; nullptr for a
  /// view.
  std::shared_ptr<const FileStates> states() const { return states_; }
  /// Moves the weight files out of this checkpoint. Afterwards it still has names and config, but its tensors
  /// cannot be read.
  std::vector<Shard> take_shards() && { return std::move(shards_); }
  /// All tensors, sorted by name.
  std::span<const TensorInfo> tensors() const { return tensors_; }
  const Shard& shard_of(size_t tensor) const { return shards()[shard_of_[tensor]]; }
  uint32_t shard_index_of(size_t tensor) const { return shard_of_[tensor]; }
  std::optional<size_t> find(std::string_view name) const { return find_tensor(tensors_, name); }
  /// The NVFP4 modules, in the order of their global scales' names.
  const std::vector<Nvfp4Linear>& nvfp4_modules() const { return modules_; }
  /// The content of config.json; null if the file is absent.
  const Json& config() const;
  /// The content of hf_quant_config.json; null if the file is absent.
  const Json& hf_quant_config() const;
  /// The two configs that define how values are read. These are the checkpoint's own configs or, for a
  /// checkpoint of one file, those in the file's folder, which are not copied to an output.
  const Json& config_of_values() const;
  const Json& hf_quant_config_of_values() const;
  /// Findings about missing index entries, files that the index does not name, and modules without a global
  /// scale.
  const Findings& findings() const { return findings_; }
  /// The config files that were read through links which lead out of the directory. Their values are used,
  /// but they are copied into an output only with Links::kFollowed.
  const std::vector<LinkOutside>& links_outside() const { return links_outside_; }
  /// Opens a file of the directory again. Throws Error if its path now leads out of the directory.
  InputFile open_again(const char* name) const;

  /// Returns the place of a tensor, for messages: "model-00003.safetensors: model.norm.weight".
  std::string where(size_t tensor) const;
  /// Reads bytes [offset, offset + out.size()) of a tensor. Several threads may call it at once.
  void read(size_t tensor, uint64_t offset, std::span<uint8_t> out) const;
  /// True if a module's tensors are computed as they are read. Planning does not read them.
  bool is_computed(const Nvfp4Linear& module) const { return computed_from(module).has_value(); }
  /// Findings about the tensors computed so far: one of each kind, with the first module that has it.
  Findings computed_findings() const { return source_ ? source_->computed_findings() : Findings{}; }
  /// Return TensorSource::config_texts() and TensorSource::source_note(); empty if there is no source.
  std::map<std::string, std::string> config_texts() const;
  Json source_note() const { return source_ ? source_->source_note() : Json(nullptr); }
  /// Return TensorSource::dropped_files() and TensorSource::kept_files(); empty if there is no source.
  std::set<std::string> dropped_files() const;
  std::set<std::string> kept_files() const;
  /// The number of bytes that are read to compute a module; nullopt if the module is stored.
  std::optional<uint64_t> computed_from(const Nvfp4Linear& module) const;
  /// Reads rows of a computed module as TensorSource::read_rows() does.
  void read_rows(const Nvfp4Linear& module, const RowRange& rows, std::span<uint8_t> codes,
                 std::span<uint8_t> scales) const;
  /// Returns TensorSource::computed_result() of a module.
  Json computed_result(const Nvfp4Linear& module) const;

 private:
  std::shared_ptr<Json> read_config(const char* name);
  /// With `loose`, tensors of one name are no Error. `index` decides which stays.
  void open_shards(const std::vector<std::string>& names, Io io, LooseFiles* loose = nullptr,
                   const IndexFile* index = nullptr);
  void note_incomplete_modules();
  void find_modules();
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
  std::shared_ptr<Beside> beside_;  ///< the configs in the folder of a checkpoint of one file
  std::shared_ptr<const FileStates> states_;
  Findings findings_;
  std::vector<LinkOutside> links_outside_;
  std::shared_ptr<const TensorSource> source_;
};

/// The directory of a checkpoint, if `path` is its index or its config.json. Any other path stays as it is.
std::filesystem::path checkpoint_directory(const std::filesystem::path& path);

/// The directory of a safetensors file that is its only one and lies beside a config.json. nullopt for any
/// other path.
std::optional<std::filesystem::path> directory_of_lone_shard(const std::filesystem::path& file);

/// The journal's name. The journal exists from the first byte of a run to its last. A directory that has it
/// is unfinished.
inline constexpr const char* kJournalName = ".twofour-unfinished";
/// The folder in a destination that tasks write: it has their plan, a record of each finished weight file,
/// and a folder for each running task. It is removed before the journal.
inline constexpr const char* kTasksFolder = ".twofour-tasks";
/// Returns kJournalName or kTasksFolder, whichever marks a directory as unfinished. nullptr: the directory is
/// complete or was not written by twofour.
const char* find_unfinished(const std::filesystem::path& directory);

/// Throws Error if a directory is unfinished. The message states the remedy.
void refuse_unfinished(const std::filesystem::path& directory);
inline constexpr const char* kIndexName = "model.safetensors.index.json";
inline constexpr const char* kManifestName = "twofour.json";

}  // namespace twofour
