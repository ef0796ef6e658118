#pragma once
#include <filesystem>
#include <optional>
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

/// A checkpoint on disk, sound or not, as far as it can be read. Unlike in Checkpoint, invalid parts are
/// reported and left out.
struct LintInput {
  std::filesystem::path path;  ///< the directory
  bool is_directory = false;
  bool is_part = false;  ///< one file of several, or a missing file without an index: other files may hold
                         ///< missing tensors
  bool lacks_files =
      false;  ///< a weight file is missing or could not be read; the reporter knows the tensors in it
  std::vector<Shard> shards;        ///< files whose headers could be parsed
  std::vector<TensorInfo> tensors;  ///< sorted by name
  std::vector<uint32_t> shard_of;   ///< file of each tensor
  std::vector<bool> whole;  ///< true if a tensor's bytes are all in its file and fit its type and shape
  std::vector<Nvfp4Linear> modules;  ///< modules whose tensors agree
  Json config, hf_quant_config;      ///< null if absent
  Json quantization;  ///< the configs' quantization entry; for an artifact, its source's; or null
  std::string quantization_file, quantization_key;  ///< place of the entry; no key: the whole file
  std::string layout;                               ///< layout of a twofour artifact; otherwise empty
  bool has_manifest = false;

  const std::string& file_of(size_t tensor) const { return shards[shard_of[tensor]].name; }
  /// The place of findings about a tensor, or about its module or another `name`.
  LintPlace at(size_t tensor) const { return {file_of(tensor), tensors[tensor].name}; }
  LintPlace at(size_t tensor, std::string name) const { return {file_of(tensor), std::move(name)}; }
  /// The place of findings about a key of the quantization config.
  LintPlace setting(std::string key) const { return {quantization_file, std::move(key)}; }
  std::optional<size_t> find(std::string_view name) const;
  /// Fills `places`, once `tensors` is complete, for fast lookups of names.
  void make_places();
  std::vector<uint32_t> places{};  ///< positions in `tensors` + 1 by hash, an open-addressed table; 0: none
  /// True if all three tensors of a module are whole.
  bool is_whole(const Nvfp4Linear& m) const {
    return whole[m.codes] && whole[m.block_scale] && whole[m.global_scale];
  }
  /// Reads from a whole tensor. Safe from several threads.
  void read(size_t tensor, uint64_t offset, std::span<uint8_t> out) const {
    const Shard& shard = shards[shard_of[tensor]];
    shard.file.read(shard.data_begin + tensors[tensor].begin + offset, out);
  }
};

/// Opens `path` and applies the rules about files, headers and the index. Throws Error if nothing there can
/// be linted.
LintInput open_lint_subject(const std::filesystem::path& path, LintReporter& reporter);

/// A config file of the directory; null if it is missing or (reported) not a JSON object.
Json read_lint_config(const std::filesystem::path& directory, const char* name, LintReporter& reporter);

/// The finding for a JSON file that begins with a byte order mark. The rest is still read.
inline constexpr const char* kByteOrderMarkFound =
    "expected JSON, found a byte order mark before it, which Python's json refuses";

/// Sends the content of a JSON file of the directory to `events`, without a byte order mark. Throws Error as
/// read_json_pieces() does.
void read_json_file(const std::filesystem::path& directory, const std::string& name, JsonEvents& events);

/// Reports objects of a JSON file with the same key twice. Reports nothing if it is not JSON.
void check_duplicate_keys(const std::filesystem::path& directory, const std::string& name,
                          LintReporter& reporter);
/// "duplicate-key" for an Error about one, otherwise `rule`.
std::string_view rule_of_damage(std::string_view message, std::string_view rule);

/// `message` without its leading "where: ".
std::string without_where(std::string_view message, std::string_view where);

/// Reports a layout that this version does not know.
void report_unknown_layout(const UnknownLayout& unknown, LintReporter& reporter);

/// The caught Error's text about `file`, without its name. For use in the handler: rethrows a ReadError,
/// which is an I/O failure and not about the content.
std::string damage_of(const Error& error, const std::filesystem::path& file);

}  // namespace twofour
