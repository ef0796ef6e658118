#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "lib/base/findings/finding.h"
#include "lib/base/findings/problems.h"
#include "lib/base/io/links.h"
#include "lib/recipe/artifact/recipe.h"
#include "lib/source/checkpoint/checkpoint.h"

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

}  // namespace twofour
