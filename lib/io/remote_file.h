#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "formats/json.h"

namespace twofour {

/// A file with bytes that come from elsewhere as they are read. On disk, a file of the same size and without
/// those bytes has its name.
class RemoteFile {
 public:
  virtual ~RemoteFile() = default;
  virtual uint64_t size() const = 0;
  static constexpr int64_t kUnknownVersion = 0;
  /// A number that differs where the contents do, which InputFile has in place of times; kUnknownVersion
  /// where its server says nothing of them.
  virtual int64_t version() const = 0;
  /// Fills `out` from byte `offset`; both are within the file. Safe from several threads. Throws Error.
  virtual void read(uint64_t offset, std::span<uint8_t> out) = 0;
};

/// While it lives, InputFile takes the bytes of the files below a folder from these.
class RemoteFolder {
 public:
  /// `name` is what people know the folder by, "hf://org/name@COMMIT"; `note` what twofour.json keeps of it;
  /// `files` have names relative to the folder.
  RemoteFolder(const std::filesystem::path& folder, std::string name, Json note,
               std::map<std::string, std::shared_ptr<RemoteFile>> files);
  ~RemoteFolder();
  RemoteFolder(const RemoteFolder&) = delete;
  RemoteFolder& operator=(const RemoteFolder&) = delete;

 private:
  std::string folder_;
};

/// The file that has its bytes elsewhere; nullptr for all others.
std::shared_ptr<RemoteFile> find_remote_file(const std::filesystem::path& path);
/// "hf://org/name@COMMIT" of a folder that RemoteFolder names, "hf://org/name@COMMIT/config.json" of a file
/// in it; empty for all others.
std::string remote_name(const std::filesystem::path& path);
/// What twofour.json keeps of such a folder; null for all others.
Json remote_note(const std::filesystem::path& folder);
/// `text` with the names of such folders in place of their paths, also after they are gone.
std::string with_remote_names(std::string text);

}  // namespace twofour
