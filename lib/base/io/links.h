#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "lib/base/io/file.h"

namespace twofour {

/// The links of a checkpoint that are followed when its files are copied to the output. A checkpoint that
/// came by git or as an archive may have a link to a secret of the person who converts it, and outputs may be
/// published.
enum class Links {
  kInside,    ///< links to files of the checkpoint itself
  kFollowed,  ///< all links (--follow-links)
};

/// True if a folder of that name, at any depth, is not part of a checkpoint. These are ".git", whose config
/// may hold a password, and ".cache".
bool is_skipped_folder(const std::filesystem::path& name);

/// A path in a checkpoint that leads out of the checkpoint by a link.
struct LinkOutside {
  std::filesystem::path path;    ///< the path in the checkpoint
  std::filesystem::path target;  ///< the target, without links
};

/// The link by which `path`, which is below `folder`, leads out of `folder`. Empty if the path stays inside
/// or nothing exists there. A skipped folder in `folder` counts as outside. The files directly in `blobs` of
/// a Hub's cache are inside each of its `snapshots/REVISION`; files in a `blobs` beside the folder are inside
/// if hashes name them, as in a snapshot that was moved together with them.
std::optional<LinkOutside> link_outside(const std::filesystem::path& folder,
                                        const std::filesystem::path& path);

/// The message about a link that leads out: "SRC/notes.txt: expected a file within the checkpoint, found a
/// link out of it to ...; --follow-links ...".
std::string text_of(const LinkOutside& link);

/// Opens a file below a folder. With kInside, throws Error if the path leads out of the folder. The check
/// examines the opened file, so that no link can be changed in between.
InputFile open_below(const std::filesystem::path& folder, const std::filesystem::path& path, Links links);

/// Describes a link to nothing: "a link to ../../blobs/x, which is not there (copied without -L?)". Empty for
/// all other paths.
std::string dangling_link(const std::filesystem::path& path);

/// Describes the lack of safetensors files in a directory: other weight files that it has, the snapshots of a
/// Hub's cache, or a folder that has some; else "none".
std::string where_weights_are(const std::filesystem::path& directory);

/// True if `inner` is `outer` or below it. Both must be absolute and without links. Nothing is within an
/// empty path.
bool is_within(const std::filesystem::path& inner, const std::filesystem::path& outer);

}  // namespace twofour
