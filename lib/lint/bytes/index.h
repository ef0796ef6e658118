#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lib/lint/bytes/input.h"
#include "lib/source/checkpoint/index_file.h"

namespace twofour {

/// The index of a directory. Its entries are sorted by tensor.
struct LintIndex {
  std::string name;
  IndexFile contents;
  /// Returns the file that the index states for a tensor.
  std::optional<std::string_view> file_of(std::string_view tensor) const;
};

/// Reads the index that applies: the one with the usual name, otherwise the only one. nullopt: there is no
/// usable index.
std::optional<LintIndex> read_lint_index(const std::filesystem::path& directory,
                                         const std::vector<std::string>& names, LintReporter& reporter);

/// True if a file's name marks it as one file of several: "model-00002-of-00005.safetensors".
bool is_one_of_several(std::string_view file);

/// Returns the weight files to read: the existing files that the index names or, without an index, all files
/// in `present`. `config` is config.json. `has_index_file` is true if an index exists, though it may not be
/// usable.
std::vector<std::string> files_to_lint(const std::filesystem::path& directory,
                                       const std::optional<LintIndex>& index, bool has_index_file,
                                       const std::vector<std::string>& present, const Json& config,
                                       LintReporter& reporter);

/// The tensors of all files. Several may have one name.
struct GatheredTensors {
  std::vector<TensorInfo> tensors;
  std::vector<uint32_t> owners;  ///< position of each tensor's file in LintInput::shards
  std::vector<bool> whole;
};

/// Reports files that were copied over others: the index states other tensors for them, and none of their
/// own. Removes these files and their tensors.
void drop_copied_shards(const LintIndex& index, std::vector<Shard>& shards, GatheredTensors& all,
                        LintReporter& reporter);

/// Compares the index with the headers of the files.
void check_lint_index(const LintIndex& index, const LintInput& input, LintReporter& reporter);

}  // namespace twofour
