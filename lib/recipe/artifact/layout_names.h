#pragma once
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The value of `layout` of an artifact with several layouts. `groups` names these layouts.
inline constexpr const char* kMixedLayout = "mixed";

/// True if a name is one of the layouts of formats/layouts.
bool is_layout(std::string_view name);

/// The Error that a file of an artifact names a layout that this version does not know.
struct UnknownLayout : Error {
  UnknownLayout(std::string where, std::string place, std::string_view name);
  std::string where, place;  ///< "DIRECTORY/config.json", "quantization_config.layout"
};

/// The names, other than layouts, that `layout` of a module may have, such as "quantize". They are the rows
/// of methods() that are not layouts.
std::vector<std::string>& other_method_names();

/// Finds the first unknown layout name in the headers of the weight files and in config.json. Empty if all
/// are known.
std::optional<UnknownLayout> find_unknown_layout(const std::filesystem::path& directory,
                                                 std::span<const Shard> shards, const Json& config);
/// Throws UnknownLayout if a layout is unknown.
void refuse_unknown_layout(const Checkpoint& checkpoint);

/// True if the metadata of a file state that modules are in a layout. Files in a format of engines, such as
/// "fp8", state its name. Files of several formats state "mixed", and `config`, the contents of config.json,
/// states whether layouts are among these formats.
bool states_layout(const Shard& shard, const Json& config);
/// True if the metadata of a checkpoint state that modules are in a layout. Throws UnknownLayout.
bool holds_layout(const Checkpoint& checkpoint);

/// Checks that the layouts in a twofour.json are consistent. `layout` must be "mixed" if there are `groups`,
/// and absent if there are none. Each group must have the pattern of its layout and name modules in that
/// layout. Each module must be named by a group of its layout. `module_layouts` has the layouts by module
/// name. Throws Error that names `where` on a contradiction, and UnknownLayout on an unknown layout.
void check_layout_names(std::string_view where, const Json& manifest,
                        const std::map<std::string, std::string>& module_layouts);

}  // namespace twofour
