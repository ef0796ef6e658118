#include "lib/graft/open_edited.h"

#include <fmt/format.h>

#include "formats/error.h"
#include "lib/graft/edited_checkpoint.h"
#include "lib/recipe/artifact/layout_names.h"
#include "lib/recipe/artifact/manifest.h"
#include "lib/source/linears/weight_terms.h"

namespace twofour {

namespace fs = std::filesystem;

Checkpoint open_editable(const fs::path& path, Io io) {
  Checkpoint c = Checkpoint::open(path, io);
  if (holds_layout(c)) {
    throw Error(
        fmt::format("{}: expected a checkpoint, found an artifact in a layout; edit the checkpoint that "
                    "it was made from and convert that",
                    path.string()));
  }
  std::error_code error;
  if (c.is_directory() && fs::exists(path / kManifestName, error)) {
    const Manifest manifest = read_manifest(path / kManifestName, c.tensors().size());
    if (!manifest.integrity_error.empty())
      throw Error(fmt::format("{}: {}", (path / kManifestName).string(), manifest.integrity_error));
  }
  refuse_described_codes(c);
  return c;
}

Checkpoint open_edited(const fs::path& source, const fs::path& donor, const Edit& edit, Io io) {
  if (edit.kind == Edit::Kind::kRepair) {
    throw Error(
        fmt::format("{}: expected a plan of convert, graft or drop, found one of repair, which one run "
                    "writes",
                    source.string()));
  }
  if (edit.kind == Edit::Kind::kGraft) return open_graft(source, donor, edit, io);
  if (edit.kind == Edit::Kind::kDropModules) return open_without_modules(source, edit, io);
  return open_without_experts(source, edit, io);
}

}  // namespace twofour
