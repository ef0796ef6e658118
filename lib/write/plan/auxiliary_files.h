#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lib/base/findings/finding.h"
#include "lib/base/io/links.h"
#include "lib/recipe/artifact/modules.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/plan/plan.h"

namespace twofour {

/// The files of a checkpoint that are copied or rewritten: everything but weights, index and caches.
struct AuxiliaryFiles {
  std::map<std::string, uint64_t> sizes;  ///< by relative name
  /// Links out of the checkpoint: to files that would be copied, to folders, and of twofour.json. None with
  /// Links::kFollowed, which copies their targets.
  std::vector<LinkOutside> links_outside;
};
/// Reports the files that are not copied. A link to a folder within the checkpoint is not copied: its files
/// are copied under their own names.
AuxiliaryFiles find_auxiliary_files(const std::filesystem::path& directory, Links links, Findings& findings);

/// The auxiliary files of a source, by relative name with their sizes. With Links::kInside, throws Error that
/// lists its links that lead outside, and such links of the config files of all checkpoints in it.
std::map<std::string, uint64_t> copied_files(const Checkpoint& source, Links links, Findings& findings);

/// The config.json of an artifact in layouts. One layout is the entry itself, several are its `groups`.
/// `base`: the entry of the checkpoint that it shows, if it is not the source's.
std::string layout_config_text(const Checkpoint& source, const std::vector<LayoutGroup>& groups,
                               const Json* base = nullptr);
Json layout_group_to_json(const LayoutGroup& group);
/// The config files of the checkpoint that an artifact was made from.
std::map<std::string, std::string> original_texts(const Checkpoint& source);
/// The config files of a checkpoint after these modules, or all, became BF16.
std::map<std::string, std::string> bf16_texts(const Checkpoint& source,
                                              const std::vector<std::string>& modules);
/// The index of the artifact, as text.
std::string artifact_index(const Plan& plan);

/// All files of the artifact, by relative name.
std::set<std::string> artifact_files(const Plan& plan);

}  // namespace twofour
