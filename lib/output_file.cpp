#include "lib/output_file.h"

#include <fmt/format.h>

#include "formats/error.h"
#include "lib/checkpoint/checkpoint.h"

namespace twofour {

namespace fs = std::filesystem;

void check_output_file(const fs::path& file, const char* what,
                       const std::function<bool(const fs::path&)>& is_earlier) {
  if (file.empty()) throw Error(fmt::format("expected a file for the {}, found an empty name", what));
  std::error_code error;
  const fs::path parent = file.has_parent_path() ? file.parent_path() : ".";
  if (!fs::is_directory(parent, error))
    throw Error(fmt::format("{}: expected a directory for the {}, found none", parent.string(), what));
  for (fs::path at = fs::canonical(parent, error);; at = at.parent_path()) {
    if (fs::exists(at / kManifestName, error) || find_unfinished_sign(at) != nullptr)
      throw Error(fmt::format("{}: expected a place outside of the artifact {}, found one inside",
                              file.string(), at.string()));
    if (!at.has_relative_path()) break;
  }
  if (!fs::exists(fs::symlink_status(file, error))) return;
  if (!fs::is_regular_file(fs::symlink_status(file, error)) || !is_earlier(file))
    throw Error(
        fmt::format("{}: expected no file or an earlier {}, found something else", file.string(), what));
}

}  // namespace twofour
