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

/// `layout` of an artifact with several layouts, which `groups` names.
inline constexpr const char* kMixedLayout = "mixed";

/// True if it is one of the layouts of formats/layouts.
bool is_layout(std::string_view name);

/// A file of an artifact names a layout that this version does not know.
struct UnknownLayout : Error {
  UnknownLayout(std::string where, std::string place, std::string_view name);
  std::string where, place;  ///< "DIRECTORY/config.json", "quantization_config.layout"
};

/// The methods other than layouts that `layout` of a module may name, such as "quantize": the other rows of
/// methods().
std::vector<std::string>& other_method_names();

/// The first name in the files' headers and in config.json that is no layout; nullopt if all are known.
std::optional<UnknownLayout> find_unknown_layout(const std::filesystem::path& directory,
                                                 std::span<const Shard> shards, const Json& config);
/// Throws UnknownLayout if a layout is unknown.
void refuse_unknown_layout(const Checkpoint& checkpoint);

/// True if the metadata of a checkpoint state that modules are in a layout. Files of several formats have
/// "mixed"; then config.json states whether layouts are among them. Throws UnknownLayout.
bool holds_layout(const Checkpoint& checkpoint);

/// Checks that the layouts in a twofour.json are consistent: `layout` is "mixed" if there are `groups` and
/// absent if there are none; each group has the pattern of its layout and names modules in it; and a group of
/// its layout names each module. `module_layouts` is by name of the module. Throws Error naming `where` on a
/// contradiction, and UnknownLayout.
void check_layout_names(std::string_view where, const Json& manifest,
                        const std::map<std::string, std::string>& module_layouts);

}  // namespace twofour
