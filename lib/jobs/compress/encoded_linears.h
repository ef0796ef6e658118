#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "formats/json.h"
#include "formats/safetensors.h"
#include "lib/base/io/file.h"
#include "lib/base/io/hash.h"
#include "lib/base/primitives/recently_used.h"
#include "lib/write/encode/quantized_group.h"

namespace twofour {

/// The tensors of groups as one file, written group by group; each group comes from one thread.
class GroupFile {
 public:
  explicit GroupFile(const std::filesystem::path& path) : file_(path) {}
  /// Adds a group, before begin(). Groups and the checkpoint that they read outlive this.
  void plan(const QuantizedGroup& group, const Checkpoint& source);
  void begin();
  /// Takes the bytes of the parts of group `number`, each front to back.
  EncodedBefore::Write writer(size_t number);
  /// Gives the file its name.
  void commit() { file_.commit(); }
  /// The note of a group that EncodedLinears reads.
  Json note(size_t number, const std::vector<EncodedResult>& results) const;

 private:
  struct Part {
    std::string tensor;
    uint64_t begin, bytes;  ///< in the file
    uint64_t written = 0;
    Hasher hasher = {};
  };
  struct Group {
    const QuantizedGroup* group;
    std::vector<Part> parts = {};
  };

  AtomicFile file_;
  std::vector<TensorInfo> tensors_;
  std::vector<Group> groups_;
};

/// Groups that compress encoded while it collected, in folders of its work folder. Damaged groups count as
/// missing.
class EncodedLinears : public EncodedBefore {
 public:
  static constexpr const char* kNotes = "groups.json";  ///< of a folder, written last
  /// Writes the notes of a folder's groups, as GroupFile gives them, with their hash.
  static void write_notes(const std::filesystem::path& folder, Json groups);
  /// Takes the complete folders in `work`.
  explicit EncodedLinears(const std::filesystem::path& work);
  std::optional<std::vector<EncodedResult>> read(const QuantizedGroup& group,
                                                 const Write& write) const override;

 private:
  /// Number of folders whose notes are cached; all notes would fill memory.
  static constexpr size_t kHeldNotes = 4;
  struct Place {
    size_t folder, number;  ///< in its notes
  };
  std::shared_ptr<const Json> notes_of(size_t folder) const;

  std::vector<std::filesystem::path> folders_;
  std::map<std::string, Place> places_;  ///< by the name of a group's first matrix
  mutable std::mutex mutex_;
  mutable RecentlyUsed<size_t, std::shared_ptr<const Json>> held_;  ///< by folder
};

}  // namespace twofour
