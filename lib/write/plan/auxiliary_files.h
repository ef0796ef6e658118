#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lib/base/findings/finding.h"
#include "lib/base/findings/problems.h"
#include "lib/base/io/links.h"
#include "lib/recipe/artifact/artifact_modules.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/plan/plan.h"

namespace twofour {

/// The files of a checkpoint that are copied or rewritten: all files except weights, the index and caches.
struct AuxiliaryFiles {
  std::map<std::string, uint64_t> sizes;  ///< sizes in bytes by relative name
  /// Links that lead out of the checkpoint. These are links to files that would be copied, links to folders,
  /// and a link named twofour.json. Empty with Links::kFollowed, which copies the targets.
  std::vector<LinkOutside> links_outside;
};
/// Finds the auxiliary files, and reports files that are not copied in `findings`. A link to a folder within
/// the checkpoint is not copied, since the files of that folder are copied under their own names.
AuxiliaryFiles find_auxiliary_files(const std::filesystem::path& directory, Links links, Findings& findings);

/// The auxiliary files of a source, as sizes in bytes by relative name. With Links::kInside, throws Error if
/// links lead outside. The Error lists these links, and the links of the config files of all checkpoints that
/// make up the source.
std::map<std::string, uint64_t> copied_files(const Checkpoint& source, Links links, Findings& findings);

/// The name of the file that describes the artifact: README.md, or TWOFOUR.md beside a README.md of the
/// source's author. Empty unless it is wanted. Removes a description of the source that twofour wrote from
/// the files that are `copied`. Adds a problem if an author's file has the name.
std::string plan_readme(const Checkpoint& source, Readme wanted, std::map<std::string, uint64_t>& copied,
                        Problems& problems);

/// The config.json of an artifact in layouts. One layout becomes the entry itself. Several layouts become its
/// `groups`. With `names_import` it also names the import by which transformers loads it. `base` is the
/// quantization entry of the checkpoint that the artifact stands for. Null if that is the source's entry.
std::string layout_config_text(const Checkpoint& source, const std::vector<LayoutGroup>& groups,
                               bool names_import, const Json* base = nullptr);
/// The value of `import` in the quantization entry of layouts.
inline constexpr const char* kTransformersImport = "twofour.integrations.transformers";
Json layout_group_to_json(const LayoutGroup& group);
/// The config files of the checkpoint from which an artifact was made.
std::map<std::string, std::string> original_texts(const Checkpoint& source);
/// The config files of a checkpoint after the given modules became BF16. These may be all of its NVFP4
/// modules.
std::map<std::string, std::string> bf16_texts(const Checkpoint& source,
                                              const std::vector<std::string>& modules);
/// The text of the artifact's index.
std::string artifact_index(const Plan& plan);

/// The relative names of all files of the artifact.
std::set<std::string> artifact_files(const Plan& plan);

}  // namespace twofour
