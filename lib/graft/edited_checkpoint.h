#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/artifact/edit.h"
#include "lib/checkpoint/checkpoint.h"

namespace twofour {

/// A tensor of an edited checkpoint: bytes of one file, whole or some of its equal slices.
struct EditedTensor {
  TensorInfo info;
  uint32_t shard;                                         ///< among the sources' files, the base's first
  uint64_t begin;                                         ///< in the shard's data
  std::shared_ptr<const std::vector<int64_t>> kept = {};  ///< slices, ascending; null: all
  uint64_t slice = 0;                                     ///< bytes of one
};

std::vector<std::string> names_of(const std::vector<EditedTensor>& tensors);
std::vector<std::string> names_of(const Checkpoint& c);

/// Adds the tensors that stay of a checkpoint, with shards counted from `first`.
void add_tensors(const Checkpoint& c, const std::vector<bool>& stays, uint32_t first,
                 std::vector<EditedTensor>& to);
void sort_by_name(std::vector<EditedTensor>& tensors);

/// What an edit makes, before it is known what its config says.
struct Edited {
  std::vector<EditedTensor> tensors;
  Json config, hf_quant;
  Findings findings;
  std::map<std::string, std::string> texts = {};  ///< of config files that are a source's
  Json note = nullptr;                            ///< see TensorSource::source_note
};

/// Findings of a source that hold for what is made of it. Modules are examined again.
Findings findings_of(const Checkpoint& c);

/// The config files that an edit changes.
inline constexpr const char* kConfigNames[] = {"config.json", "hf_quant_config.json"};

/// The tensors as a checkpoint under the base's configuration, to count and look at. It reads from base and
/// donor and must not outlive them.
Checkpoint outline(const Checkpoint& base, const Checkpoint* donor, const std::vector<EditedTensor>& tensors);

/// Takes the words on quantization out of what an edit makes where no codes are left, and throws Error where
/// an engine reads other formats by them than `result`, its tensors, has, though it reads the base as it is.
void settle_words(const Checkpoint& base, const Checkpoint& result, Edited& edited);

/// The edited checkpoint, which reads from the files of its sources. A config that says what the source's
/// said stays as it was written.
Checkpoint view_of(Checkpoint source, std::optional<Checkpoint> donor, Edited edited);

/// What open_edited() does, a function for each kind of edit.
Checkpoint open_graft(const std::filesystem::path& source, const std::filesystem::path& donor_path,
                      const Edit& edit, Io io);
Checkpoint open_without_modules(const std::filesystem::path& path, const Edit& edit, Io io);
Checkpoint open_without_experts(const std::filesystem::path& path, const Edit& edit, Io io);

}  // namespace twofour
