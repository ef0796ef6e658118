#pragma once
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/dialect.h"
#include "formats/error.h"
#include "formats/json.h"
#include "formats/json_events.h"
#include "lib/lint/rules/rules.h"
#include "lib/recipe/artifact/layout_names.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// A checkpoint on disk, valid or not, as far as it can be read. Unlike Checkpoint, it reports invalid parts
/// and leaves them out.
struct LintInput {
  std::filesystem::path path;  ///< the directory
  bool is_directory = false;
  /// The subject is one file of several, or a file is missing and there is no index. Other files may then
  /// hold tensors that are missing here.
  bool is_part = false;
  bool lacks_files =
      false;  ///< a weight file is missing or could not be read; the reporter knows the tensors in it
  std::vector<Shard> shards;        ///< files whose headers could be parsed
  std::vector<TensorInfo> tensors;  ///< sorted by name
  std::vector<uint32_t> shard_of;   ///< position in `shards` of each tensor's file
  /// For each tensor, true if all its bytes are in its file and fit its type and shape.
  std::vector<bool> whole;
  std::vector<Nvfp4Linear> modules;  ///< NVFP4 modules whose tensors agree
  /// Names of modules in packings that twofour does not read. They have one finding for each packing, and
  /// other rules leave them out.
  std::set<std::string, std::less<>> foreign;
  Json config, hf_quant_config;  ///< null if the file is absent
  /// The quantization entry of the configs; in an artifact, the source's entry; null: none.
  Json quantization;
  /// File and path of the entry; empty path: the whole file.
  std::string quantization_file, quantization_key;
  std::string layout;  ///< layout of a twofour artifact; empty: it is none
  bool has_manifest = false;

  const std::string& file_of(size_t tensor) const { return shards[shard_of[tensor]].name; }
  /// Returns the place of findings about a tensor, its module, or anything else called `name` in its file.
  LintPlace at(size_t tensor) const { return {file_of(tensor), tensors[tensor].name}; }
  LintPlace at(size_t tensor, std::string name) const { return {file_of(tensor), std::move(name)}; }
  /// Returns the place of findings about a key of the quantization config.
  LintPlace setting(std::string key) const { return {quantization_file, std::move(key)}; }
  std::optional<size_t> find(std::string_view name) const;
  /// Fills `places`, which makes lookups of names fast. `tensors` must be complete.
  void make_places();
  const Checkpoint* view = nullptr;  ///< reads the tensors of a checkpoint that is not on disk
  std::vector<uint32_t> places{};    ///< hash table of names: positions in `tensors` plus 1; 0: free
  /// True if the module's codes, block scales and global scale are all whole.
  bool is_whole(const Nvfp4Linear& m) const {
    return whole[m.codes] && whole[m.block_scale] && whole[m.global_scale];
  }
  /// Reads bytes of a whole tensor, from `offset` on. Several threads may call it at once.
  void read(size_t tensor, uint64_t offset, std::span<uint8_t> out) const {
    if (view != nullptr) return view->read(tensor, offset, out);
    const Shard& shard = shards[shard_of[tensor]];
    shard.file.read(shard.data_begin + tensors[tensor].begin + offset, out);
  }
};

/// Opens `path` and applies the rules about files, headers and the index. Throws Error if there is nothing
/// that can be linted.
LintInput open_lint_subject(const std::filesystem::path& path, LintReporter& reporter);
/// Returns a checkpoint that is not on disk as a subject. `view` must outlive it. Rules about files see the
/// files of view.path().
LintInput lint_subject_of(const Checkpoint& view, LintReporter& reporter);

/// Reads a config file of the directory. Returns null if it is missing, or if it is not a JSON object, which
/// is then reported.
Json read_lint_config(const std::filesystem::path& directory, const char* name, LintReporter& reporter);

/// The message about a JSON file that begins with a byte order mark. The rest of the file is still read.
inline constexpr const char* kByteOrderMarkFound =
    "expected JSON, found a byte order mark before it, which Python's json refuses";

/// Sends the content of a JSON file of the directory, without a byte order mark, to `events`. Throws Error
/// like read_json_pieces().
void read_json_file(const std::filesystem::path& directory, const std::string& name, JsonEvents& events);

/// Reports objects in a JSON file that have a key twice. A file that is not JSON is not reported here.
void check_duplicate_keys(const std::filesystem::path& directory, const std::string& name,
                          LintReporter& reporter);
/// Returns "duplicate-key" if `message` is that of an Error about a key that occurs twice, otherwise `rule`.
std::string_view rule_of_damage(std::string_view message, std::string_view rule);

/// Returns `message` without "WHERE: " at its beginning, where WHERE is `where`.
std::string without_where(std::string_view message, std::string_view where);

/// Reports a layout that this version of twofour does not know.
void report_unknown_layout(const UnknownLayout& unknown, LintReporter& reporter);

/// Returns the text of a caught Error about `file`, without the file's name. Call it in the handler: it
/// rethrows a ReadError, which is an I/O failure and no fault of the content.
std::string damage_of(const Error& error, const std::filesystem::path& file);

}  // namespace twofour
