#pragma once
#include <map>
#include <set>
#include <string>
#include <vector>

#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/plan/plan.h"

namespace twofour {

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
