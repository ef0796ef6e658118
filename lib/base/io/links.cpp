#include "lib/base/io/links.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <vector>

#include "formats/error.h"
#include "lib/base/findings/finding.h"
#include "lib/base/findings/options.h"
#include "lib/base/io/descriptor.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

constexpr std::array kSkippedFolders = {".cache", ".git"};

/// True if a resolved path is a skipped folder of the folder `root`, or is in one.
bool is_in_skipped(const fs::path& target, const fs::path& root) {
  const fs::path below = target.lexically_relative(root);
  return std::any_of(below.begin(), below.end(), is_skipped_folder);
}

/// The `blobs` folder of the Hub's cache for a snapshot or a folder within a snapshot; empty for all other
/// folders.
fs::path blobs_of(const fs::path& folder) {
  for (fs::path at = folder; at.has_relative_path(); at = at.parent_path()) {
    if (at.parent_path().filename() == "snapshots") return at.parent_path().parent_path() / "blobs";
  }
  return {};
}

/// True if a file is named by a hash of its content, as in the Hub's cache: git's SHA-1 or SHA-256.
bool is_named_by_hash(const fs::path& file) {
  const std::string name = file.filename().string();
  return (name.size() == 40 || name.size() == 64) &&
         name.find_first_not_of("0123456789abcdef") == std::string::npos;
}

/// True if a resolved path belongs to the checkpoint in a folder. A `blobs` that is itself a link does not
/// count: no resolved path has its name.
bool is_inside(const fs::path& target, const fs::path& folder) {
  std::error_code error;
  const fs::path root = fs::canonical(folder, error);
  if (error) return false;
  const fs::path blobs = blobs_of(root);
  if (is_within(target, root)) return !is_in_skipped(target, root);
  if (!blobs.empty() && target.parent_path() == blobs) return true;
  return target.parent_path() == root.parent_path() / "blobs" && is_named_by_hash(target);
}

}  // namespace

bool is_skipped_folder(const fs::path& name) {
  return std::find(kSkippedFolders.begin(), kSkippedFolders.end(), name) != kSkippedFolders.end();
}

bool is_within(const fs::path& inner, const fs::path& outer) {
  if (outer.empty()) return false;
  return std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first == outer.end();
}

std::optional<LinkOutside> link_outside(const fs::path& folder, const fs::path& path) {
  std::error_code error;
  const fs::path target = fs::canonical(path, error);
  if (!error) {
    if (is_inside(target, folder)) return std::nullopt;
    return LinkOutside{path, target};
  }
  // A file that can be opened but has no path, such as /proc/self/fd/3 of a removed file, is never inside.
  if (!fs::exists(path, error)) return std::nullopt;
  return LinkOutside{path, fs::read_symlink(path, error)};
}

std::string text_of(const LinkOutside& link) {
  return fmt::format(
      "{}: expected a file within the checkpoint, found a link to {}, outside of it: remove it, or include "
      "its target with {}",
      link.path.string(), link.target.string(), options::kFollowLinks);
}

InputFile open_below(const fs::path& folder, const fs::path& path, Links links) {
  InputFile file(path);
  if (links == Links::kFollowed || file.is_remote()) return file;
  std::error_code error;
  const fs::path target = fs::canonical(path, error);
  if (error || !is_inside(target, folder)) throw Error(text_of({path, target}));
  if (!has_name(file.descriptor(), target)) {
    throw Error(fmt::format("{}: expected a file that does not change while being opened, found a change",
                            path.string()));
  }
  return file;
}

std::string dangling_link(const fs::path& path) {
  std::error_code error;
  if (!fs::is_symlink(fs::symlink_status(path, error)) || !is_absent(path)) return {};
  return fmt::format("a link to {}, which does not exist (copied without -L?)",
                     fs::read_symlink(path, error).string());
}

namespace {

/// Names in a directory for which `is_wanted` is true, sorted. Empty if the directory cannot be listed.
template <class Wanted>
std::vector<std::string> names_in(const fs::path& directory, Wanted is_wanted) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    if (is_wanted(*it)) names.push_back(it->path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// The revision that refs/main of a Hub's cache names. Empty if there is none.
std::string main_revision(const fs::path& directory) {
  constexpr uint64_t kLongest = 200;
  const fs::path file = directory / "refs" / "main";
  std::error_code error;
  if (!fs::is_regular_file(file, error) || fs::file_size(file, error) > kLongest || error) return {};
  std::string text = read_text(file);
  text.erase(std::find_if(text.begin(), text.end(), [](unsigned char c) { return std::isspace(c); }),
             text.end());
  return text;
}

/// Says which snapshot to take, if the directory is the root of a model in a Hub's cache.
std::string snapshots_in(const fs::path& directory) {
  const auto all = names_in(directory / "snapshots", [](const fs::directory_entry&) { return true; });
  if (all.empty()) return {};
  const std::string main = main_revision(directory);
  const bool has_main = std::find(all.begin(), all.end(), main) != all.end();
  const std::string path = (directory / "snapshots" / (has_main ? main : all.front())).string();
  const std::string others =
      all.size() > 1 ? fmt::format(", of {} snapshots: {}", all.size(), fmt::join(all, ", ")) : "";
  return fmt::format("none; it is the root of a Hub's cache: take {}{}", path, others);
}

/// Kinds of weight files that are not safetensors, and what to do about them.
struct OtherWeights {
  std::vector<std::string_view> suffixes;
  const char *what, *todo;
};

/// Says which other weight files a directory has.
std::string other_weights_in(const fs::path& directory) {
  static const OtherWeights kKinds[] = {
      {{".gguf"}, "GGUF", "take the checkpoint that it was made from"},
      {{".bin", ".pt", ".pth", ".ckpt"}, "PyTorch", "convert it to safetensors"},
      {{".onnx"}, "ONNX", "take the checkpoint that it was made from"},
      {{".h5", ".msgpack", ".npz"}, "TensorFlow, Flax or NumPy", "convert it to safetensors"}};
  for (const OtherWeights& kind : kKinds) {
    const auto names = names_in(directory, [&](const fs::directory_entry& entry) {
      const std::string name = entry.path().filename().string();
      return name != "training_args.bin" && std::any_of(kind.suffixes.begin(), kind.suffixes.end(),
                                                        [&](auto& s) { return name.ends_with(s); });
    });
    if (names.empty()) continue;
    return fmt::format("{} of {} ({}{}): {}", counted(names.size(), "file"), kind.what, names.front(),
                       names.size() > 1 ? ", ..." : "", kind.todo);
  }
  return {};
}

}  // namespace

std::string where_weights_are(const std::filesystem::path& directory) {
  if (const std::string snapshots = snapshots_in(directory); !snapshots.empty()) return snapshots;
  const auto models = names_in(directory, [](const fs::directory_entry& entry) {
    return entry.path().filename().string().starts_with("models--");
  });
  if (!models.empty()) {
    const std::string first = snapshots_in(directory / models.front());
    const size_t at = first.find(": take ");
    return fmt::format("none; it is a Hub's cache of {}: {}", counted(models.size(), "model"),
                       at == first.npos ? "take the snapshot of one" : first.substr(at + 2));
  }
  if (const std::string others = other_weights_in(directory); !others.empty()) return others;
  const auto below = names_in(directory, [](const fs::directory_entry& entry) {
    std::error_code error;
    return entry.is_directory(error) && !names_in(entry.path(), [](const fs::directory_entry& file) {
                                           return file.path().extension() == ".safetensors";
                                         }).empty();
  });
  if (!below.empty()) return fmt::format("none; some are in {}", (directory / below.front()).string());
  return "none";
}

}  // namespace twofour
