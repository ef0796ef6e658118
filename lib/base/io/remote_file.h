#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "formats/json.h"

namespace twofour {

/// A file whose bytes come from elsewhere as they are read. On disk, its name belongs to a file of the same
/// size without those bytes.
class RemoteFile {
 public:
  virtual ~RemoteFile() = default;
  virtual uint64_t size() const = 0;
  static constexpr int64_t kUnknownVersion = 0;
  /// A number that differs if the contents differ, which InputFile uses in place of times; kUnknownVersion if
  /// the server does not identify them.
  virtual int64_t version() const = 0;
  /// Fills `out` from byte `offset`; both are within the file. Safe from several threads. Throws Error.
  virtual void read(uint64_t offset, std::span<uint8_t> out) = 0;
};

/// While it lives, InputFile reads the files below a folder from these RemoteFiles.
class RemoteFolder {
 public:
  /// `name` is what users see for the folder, "hf://org/name@COMMIT"; `note` is its entry in twofour.json;
  /// `files` have names relative to the folder.
  RemoteFolder(const std::filesystem::path& folder, std::string name, Json note,
               std::map<std::string, std::shared_ptr<RemoteFile>> files);
  ~RemoteFolder();
  RemoteFolder(const RemoteFolder&) = delete;
  RemoteFolder& operator=(const RemoteFolder&) = delete;

 private:
  std::string folder_;
};

/// The file whose bytes are elsewhere; nullptr for all others.
std::shared_ptr<RemoteFile> find_remote_file(const std::filesystem::path& path);
/// "hf://org/name@COMMIT" for a folder of a RemoteFolder, "hf://org/name@COMMIT/config.json" for a file in
/// it; empty for all others.
std::string remote_name(const std::filesystem::path& path);
/// The entry of such a folder in twofour.json; null for all others.
Json remote_note(const std::filesystem::path& folder);
/// `text` with the names of such folders in place of their paths, even after they are gone.
std::string with_remote_names(std::string text);

}  // namespace twofour
