#pragma once
#include <filesystem>
#include <optional>
#include <string>

#include "lib/io/file.h"

namespace twofour {

/// Which links of a checkpoint are followed where its files go into what is written. One that came by git or
/// as an archive may link to a secret of whoever converts it, and outputs are published.
enum class Links {
  kInside,    ///< those that lead to files of the checkpoint itself
  kFollowed,  ///< all, as --follow-links asks for
};

/// Whether a folder of that name within a checkpoint is no part of it, at any depth: ".git", whose config may
/// hold a password, and ".cache".
bool is_skipped_folder(const std::filesystem::path& name);

/// A path of a checkpoint that leads out of it by a link.
struct LinkOutside {
  std::filesystem::path path;    ///< of the checkpoint
  std::filesystem::path target;  ///< what is there, without links
};

/// Where `path`, which is below `folder`, leads out of it. Nothing where it stays inside and where nothing is
/// there. What is in a skipped folder of it is outside, too. The files directly in `blobs` of a Hub's cache
/// are inside of each of its `snapshots/REVISION`; those in a `blobs` beside the folder are inside if hashes
/// name them, as in a snapshot that was moved with them.
std::optional<LinkOutside> link_outside(const std::filesystem::path& folder,
                                        const std::filesystem::path& path);

/// "SRC/notes.txt: expected a file within the checkpoint, found a link out of it to ...; --follow-links ..."
std::string text_of(const LinkOutside& link);

/// Opens a file below a folder. With kInside, throws Error where it is outside; it is the file that was
/// opened that is looked at, so that no link can be changed in between.
InputFile open_below(const std::filesystem::path& folder, const std::filesystem::path& path, Links links);

/// Of a link to nothing: "a link to ../../blobs/x, which is not there (copied without -L?)". Empty for all
/// others.
std::string dangling_link(const std::filesystem::path& path);

/// Whether `inner` is `outer` or below it; both are absolute and without links. Nothing is in an empty path.
bool is_within(const std::filesystem::path& inner, const std::filesystem::path& outer);

}  // namespace twofour
