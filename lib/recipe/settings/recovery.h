#pragma once
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "formats/json.h"
#include "lib/base/io/hash.h"
#include "lib/recipe/settings/json_keys.h"

namespace twofour {

/// The record of `compress --recover`, which tuned norms and global scales of an artifact after their codes
/// were chosen. Source and recipe determine all other bytes.
struct Recovery {
  /// A tensor that was tuned.
  struct Tuned {
    Hash128 from, to;  ///< hashes of its bytes as they were derived, and as they were learned
    /// The float32 bits that were derived, if it has global scales. A norm has the source's bytes.
    std::vector<uint32_t> bits = {};
  };
  /// The bytes of tensors, by name.
  using Values = std::map<std::string, std::vector<uint8_t>>;

  int64_t passes = 0;                ///< requested passes over the windows
  int64_t kept = 0;                  ///< the pass with the least loss on held-out windows; 0: nothing changed
  int64_t tokens = 0, held_out = 0;  ///< tokens that were learned from, and held-out tokens
  double before = 0, after = 0;      ///< mean KL(source || artifact) of held-out tokens, in nats
  std::string device;                ///< the device that learned
  std::map<std::string, Tuned> tuned = {};  ///< by name in the artifact; empty if `kept` is 0
  /// The bytes to write. Null if the record was read from a twofour.json.
  std::shared_ptr<const Values> values = {};
};

Json recovery_to_json(const Recovery& recovery);
/// Throws Error on unknown keys, and on figures that no recovery has: a loss that did not fall, or that fell
/// without a tensor that was tuned. Throws Json::exception on anything but a record.
Recovery recovery_from_json(const JsonPlace& place, const Json& json);

}  // namespace twofour
