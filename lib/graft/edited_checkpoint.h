#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/recipe/artifact/edit.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// A tensor of an edited checkpoint: bytes of one file, all or some of its equal slices.
struct EditedTensor {
  TensorInfo info;
  uint32_t shard;                                         ///< among the sources' files, the base's first
  uint64_t begin;                                         ///< in the shard's data
  std::shared_ptr<const std::vector<int64_t>> kept = {};  ///< slices, ascending; null: all
  uint64_t slice = 0;                                     ///< bytes of one
};

std::vector<std::string> names_of(const std::vector<EditedTensor>& tensors);
std::vector<std::string> names_of(const Checkpoint& c);

/// Adds the remaining tensors of a checkpoint, with shards counted from `first`.
void add_tensors(const Checkpoint& c, const std::vector<bool>& stays, uint32_t first,
                 std::vector<EditedTensor>& to);
void sort_by_name(std::vector<EditedTensor>& tensors);

/// The result of an edit, before its config is complete.
struct Edited {
  std::vector<EditedTensor> tensors;
  Json config, hf_quant;
  Findings findings;
  std::map<std::string, std::string> texts = {};  ///< of config files copied from a source
  Json note = nullptr;                            ///< see TensorSource::source_note
};

/// Findings of a source that also hold for a result made from it. Modules are examined again.
Findings findings_of(const Checkpoint& c);

/// The config files that an edit changes.
inline constexpr const char* kConfigNames[] = {"config.json", "hf_quant_config.json"};

/// The tensors as a checkpoint with the base's configuration, to count and examine. It reads from base and
/// donor and must not outlive them.
Checkpoint outline(const Checkpoint& base, const Checkpoint* donor, const std::vector<EditedTensor>& tensors);

/// Removes the settings of quantization from an edit's result if no codes are left. Throws Error if an engine
/// would take `result`, the result's tensors, for other formats because of them, although it reads the base
/// correctly.
void settle_words(const Checkpoint& base, const Checkpoint& result, Edited& edited);

/// The edited checkpoint, which reads from the files of its sources. A config that equals the source's keeps
/// the source's text.
Checkpoint view_of(Checkpoint source, std::optional<Checkpoint> donor, Edited edited);

/// The implementations of open_edited(), one for each kind of edit.
Checkpoint open_graft(const std::filesystem::path& source, const std::filesystem::path& donor_path,
                      const Edit& edit, Io io);
Checkpoint open_without_modules(const std::filesystem::path& path, const Edit& edit, Io io);
Checkpoint open_without_experts(const std::filesystem::path& path, const Edit& edit, Io io);

}  // namespace twofour
