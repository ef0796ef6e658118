#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/json.h"
#include "formats/safetensors.h"
#include "lib/base/io/file.h"
#include "lib/base/io/hash.h"
#include "lib/base/io/work_file.h"
#include "lib/base/primitives/recently_used.h"
#include "lib/write/encode/quantized_group.h"

namespace twofour {

/// Writes a new small file of a work folder without flushing it.
void write_work_text(const std::filesystem::path& path, std::string_view text);

/// A file with the tensors of groups, written group by group. Each group is written by one thread. It is not
/// flushed, since EncodedLinears notices damage.
class GroupFile {
 public:
  explicit GroupFile(std::filesystem::path path) : path_(std::move(path)) {}
  /// Adds a group. Call this before begin(). The groups, and the checkpoint that they read, must outlive this
  /// object.
  void plan(const QuantizedGroup& group, const Checkpoint& source);
  void begin();
  /// Takes the bytes of the parts of group `number`, each part from front to back.
  EncodedBefore::Write writer(size_t number);
  /// The note on a group for EncodedLinears.
  Json note(size_t number, const std::vector<EncodedResult>& results) const;

 private:
  struct Part {
    std::string tensor;
    uint64_t begin, bytes;  ///< range of bytes in the file
    uint64_t written = 0;
    Hasher hasher = {};
  };
  struct Group {
    const QuantizedGroup* group;
    std::vector<Part> parts = {};
  };

  std::filesystem::path path_;
  std::unique_ptr<WorkFile> file_;
  std::vector<TensorInfo> tensors_;
  std::vector<Group> groups_;
};

/// Groups that were encoded while statistics were collected. They are in folders of the work folder. Damaged
/// groups count as missing.
class EncodedLinears : public EncodedBefore {
 public:
  static constexpr const char* kNotes = "groups.json";  ///< a file in each folder; it is written last
  /// Writes the notes of a folder's groups, which GroupFile::note() made, and their hash.
  static void write_notes(const std::filesystem::path& folder, Json groups);
  /// Uses the complete folders in `work`.
  explicit EncodedLinears(const std::filesystem::path& work);
  std::optional<std::vector<EncodedResult>> read(const QuantizedGroup& group,
                                                 const Write& write) const override;

 private:
  /// Number of folders whose notes are cached. The notes of all folders would need too much memory.
  static constexpr size_t kHeldNotes = 4;
  struct Place {
    size_t folder, number;  ///< index of the folder, and index in its notes
  };
  std::shared_ptr<const Json> notes_of(size_t folder) const;

  std::vector<std::filesystem::path> folders_;
  std::map<std::string, Place> places_;  ///< by name of the first matrix of a group
  mutable std::mutex mutex_;
  mutable RecentlyUsed<size_t, std::shared_ptr<const Json>> held_;  ///< by index of the folder
};

}  // namespace twofour
