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
#include "lib/artifact/layout_names.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/lint/rules/rules.h"

namespace twofour {

/// A checkpoint as it is on disk, sound or not: whatever of it can be understood. Unlike Checkpoint, what is
/// wrong went to the reporter and was left out.
struct LintInput {
  std::filesystem::path path;  ///< the directory
  bool is_directory = false;
  bool is_part = false;  ///< one file of several, or no index says what a missing one holds: what it lacks,
                         ///< others may hold
  bool lacks_files =
      false;  ///< a weight file is missing or could not be read; the reporter knows what it held
  std::vector<Shard> shards;        ///< with headers that could be parsed
  std::vector<TensorInfo> tensors;  ///< by name
  std::vector<uint32_t> shard_of;   ///< of each tensor
  std::vector<bool> whole;  ///< whether a tensor's bytes are all in its file and fit its type and shape
  std::vector<Nvfp4Linear> modules;  ///< with tensors that agree
  Json config, hf_quant_config;      ///< null if absent
  Json quantization;  ///< what the configs say of it, a source's words for an artifact; or null
  std::string quantization_file, quantization_key;  ///< its place; no key: the whole file
  std::string layout;                               ///< of an artifact of ours; else empty
  bool has_manifest = false;

  const std::string& file_of(size_t tensor) const { return shards[shard_of[tensor]].name; }
  /// Where findings about a tensor are, or about the module or another `name` that it belongs to.
  LintPlace at(size_t tensor) const { return {file_of(tensor), tensors[tensor].name}; }
  LintPlace at(size_t tensor, std::string name) const { return {file_of(tensor), std::move(name)}; }
  /// Where findings about a key of the quantization config are.
  LintPlace setting(std::string key) const { return {quantization_file, std::move(key)}; }
  std::optional<size_t> find(std::string_view name) const;
  /// Once `tensors` is complete: by it names are found without a search.
  void make_places();
  std::vector<uint32_t> places{};  ///< positions in `tensors` + 1 by hash, an open-addressed table; 0: none
  /// Whether all three of a module's tensors are whole.
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

/// A config file of the directory; null if it is missing or, which is reported, not a JSON object.
Json read_lint_config(const std::filesystem::path& directory, const char* name, LintReporter& reporter);

/// What there is to say of a JSON file that begins with a byte order mark; what follows is read all the same.
inline constexpr const char* kByteOrderMarkFound =
    "expected JSON, found a byte order mark before it, which Python's json refuses";

/// Tells `events` what a JSON file of the directory holds; a byte order mark before it is passed over. Throws
/// Error as read_json_pieces() does.
void read_json_file(const std::filesystem::path& directory, const std::string& name, JsonEvents& events);

/// Looks for objects of a JSON file with the same key twice. Reports nothing on what is no JSON.
void check_duplicate_keys(const std::filesystem::path& directory, const std::string& name,
                          LintReporter& reporter);
/// "duplicate-key" of an Error about one, else `rule`.
std::string_view rule_of_damage(std::string_view message, std::string_view rule);

/// `message` without the "where: " that it begins with.
std::string without_where(std::string_view message, std::string_view where);

/// Adds a finding of a layout that this version does not know.
void report_unknown_layout(const UnknownLayout& unknown, LintReporter& reporter);

/// What the Error that was just caught says about `file`, without its name. For use within the handler:
/// rethrows a ReadError, which is an I/O failure and says nothing about the content.
std::string damage_of(const Error& error, const std::filesystem::path& file);

}  // namespace twofour
