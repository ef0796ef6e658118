#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "formats/json.h"

namespace twofour {

/// A file whose bytes come from a server when they are read. On disk, its name belongs to a file of the same
/// size that does not have those bytes.
class RemoteFile {
 public:
  virtual ~RemoteFile() = default;
  virtual uint64_t size() const = 0;
  static constexpr int64_t kUnknownVersion = 0;
  /// A number that differs if the contents differ. InputFile uses it in place of times. kUnknownVersion if
  /// the server does not identify the contents.
  virtual int64_t version() const = 0;
  /// Fills `out` from byte `offset`. The range must be within the file. Safe from several threads. Throws
  /// Error if the bytes cannot be read.
  virtual void read(uint64_t offset, std::span<uint8_t> out) = 0;
};

/// While this object lives, InputFile reads the files below a folder from RemoteFiles.
class RemoteFolder {
 public:
  /// `name` is the name of the folder for users, "hf://org/name@COMMIT". `note` is its entry in twofour.json.
  /// The keys of `files` are paths relative to the folder.
  RemoteFolder(const std::filesystem::path& folder, std::string name, Json note,
               std::map<std::string, std::shared_ptr<RemoteFile>> files);
  ~RemoteFolder();
  RemoteFolder(const RemoteFolder&) = delete;
  RemoteFolder& operator=(const RemoteFolder&) = delete;

 private:
  std::string folder_;
};

/// The RemoteFile at a path. Null for every other file.
std::shared_ptr<RemoteFile> find_remote_file(const std::filesystem::path& path);
/// The name for users of a path of a RemoteFolder: "hf://org/name@COMMIT" for its folder,
/// "hf://org/name@COMMIT/config.json" for a file in it. Empty for all other paths.
std::string remote_name(const std::filesystem::path& path);
/// The entry of the folder of a RemoteFolder in twofour.json. Null for all other folders.
Json remote_note(const std::filesystem::path& folder);
/// Replaces the paths of folders of RemoteFolders in `text` by their names for users, even after the
/// RemoteFolders are destroyed.
std::string with_remote_names(std::string text);

}  // namespace twofour
