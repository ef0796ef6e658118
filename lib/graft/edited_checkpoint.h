#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "lib/recipe/artifact/edit.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// A table whose entry b replaces byte b.
using ByteTable = std::array<uint8_t, 256>;

/// A tensor of an edited checkpoint. Its bytes come from one file: all of a stored tensor, or some of its
/// slices of equal size. Or they are known.
struct EditedTensor {
  TensorInfo info;
  uint32_t shard;  ///< position among the sources' files; the base's files come first
  uint64_t begin;  ///< offset in the shard's data, in bytes
  /// Slices that stay, ascending. Null for the whole tensor.
  std::shared_ptr<const std::vector<int64_t>> kept = {};
  uint64_t slice = 0;  ///< bytes of one slice
  /// The bytes of a tensor that no file holds. Null for a tensor of a file.
  std::shared_ptr<const std::vector<uint8_t>> made = {};
  /// The byte that replaces each byte of the file. Null if bytes stay.
  std::shared_ptr<const ByteTable> table = {};
};

std::vector<std::string> names_of(const std::vector<EditedTensor>& tensors);
std::vector<std::string> names_of(const Checkpoint& c);

/// Appends the tensors of `c` for which `stays` is true to `to`. Their shard numbers begin at `first`.
void add_tensors(const Checkpoint& c, const std::vector<bool>& stays, uint32_t first,
                 std::vector<EditedTensor>& to);
void sort_by_name(std::vector<EditedTensor>& tensors);

/// The result of an edit, before its config is complete.
struct Edited {
  std::vector<EditedTensor> tensors;
  Json config, hf_quant;
  Findings findings;
  /// Texts of config files that are copied from a source, by file name.
  std::map<std::string, std::string> texts = {};
  Json note = nullptr;  ///< see TensorSource::source_note
  /// See the functions of TensorSource.
  std::set<std::string> dropped_files = {}, kept_files = {};
  /// Modules whose tensors disagree are no modules of the result. Otherwise they are an Error.
  bool may_be_broken = false;
};

/// The findings of a source that also hold for a result made from it. Findings about modules are left out,
/// since the result's modules are examined again.
Findings findings_of(const Checkpoint& c);

/// The config files that an edit changes.
inline constexpr const char* kConfigNames[] = {"config.json", "hf_quant_config.json"};

/// A checkpoint with these tensors and the base's configuration, for counting and examining. `base` and
/// `donor` must outlive it, because it reads from them.
Checkpoint outline(const Checkpoint& base, const Checkpoint* donor, const std::vector<EditedTensor>& tensors);
/// The same with the configuration of `edited`.
Checkpoint outline(const Checkpoint& base, const Checkpoint* donor, const Edited& edited);

/// Removes the quantization settings from `edited` if no quantized weights are left. `result` has the
/// result's tensors. Throws Error if an engine reads the base correctly, but would read `result` in wrong
/// formats because of the settings.
void settle_settings(const Checkpoint& base, const Checkpoint& result, Edited& edited);

/// Makes the edited checkpoint, which reads from the files of its sources. A config that equals the source's
/// config keeps its text.
Checkpoint view_of(Checkpoint source, std::optional<Checkpoint> donor, Edited edited);

/// The implementations of open_edited(), one for each kind of edit.
Checkpoint open_graft(const std::filesystem::path& source, const std::filesystem::path& donor_path,
                      const Edit& edit, Io io);
Checkpoint open_without_modules(const std::filesystem::path& path, const Edit& edit, Io io);
Checkpoint open_without_experts(const std::filesystem::path& path, const Edit& edit, Io io);

}  // namespace twofour
