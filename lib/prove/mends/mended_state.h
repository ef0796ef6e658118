#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "formats/dialect.h"
#include "formats/json.h"
#include "lib/base/findings/finding.h"
#include "lib/recipe/artifact/edit.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The record of one mend in twofour.json.
struct MendNote {
  struct Setting {
    std::string file, key, before, after;  ///< the values as JSON, or "absent"
  };
  std::string mend = {}, prefix = {};
  std::set<std::string> rules = {}, tensors = {}, dropped = {}, files = {};
  std::map<std::string, std::string> values = {};  ///< bits of scales, by tensor
  std::vector<Setting> settings = {};
  std::map<std::string, double> loss = {};
};

/// The records of all mends.
struct RepairNote {
  std::vector<MendNote> mends;
  std::string donor;   ///< fingerprint of the donor, or empty
  std::string readme;  ///< name of the file that describes the artifact, which no mend wrote, or empty
};
/// Reads the records from a twofour.json of an artifact with `tensors` tensors. Throws Error that names the
/// file if they are no records of mends.
RepairNote read_repair_note(const std::filesystem::path& manifest, size_t tensors);

/// A tensor that the result must have.
struct MendedTensor {
  TensorInfo info;
  const Checkpoint* from = nullptr;  ///< the source or the donor; null if the bytes are known
  size_t tensor = 0;                 ///< its index there
  std::vector<uint8_t> bytes = {};   ///< the bytes if `from` is null
  /// The byte for each byte of the origin. Null if bytes stay.
  std::optional<std::array<uint8_t, 256>> table = {};

  /// Reads bytes [begin, begin + out.size()).
  void read(uint64_t begin, std::span<uint8_t> out) const;
  /// The numbers of a small tensor in float32, otherwise nothing.
  std::vector<float> floats() const;
};

/// The checkpoint that the source must have become after some of the mends.
struct MendedState {
  const RepairSettings& settings;
  const Checkpoint* donor;
  std::map<std::string, MendedTensor> tensors;  ///< by name
  Json config, hf_quant;
  Findings differences = {};

  bool wants(std::string_view rule) const {
    return settings.only.empty() || settings.only.contains(std::string(rule));
  }
  void differ(const char* id, std::string where, std::string message) {
    differences.push_back({Severity::kError, id, std::move(where), std::move(message)});
  }
  std::vector<TensorInfo> infos() const;
  /// Compares the tensors that a mend must make with its record, null if there is none. Then the state has
  /// them.
  void make(const char* mend, const MendNote* note, std::vector<MendedTensor> made);
};

/// True for scales that are positive and finite.
bool is_usable(float scale);
/// The NVFP4 modules whose tensors fit together.
std::vector<Nvfp4Linear> sound_modules(const std::vector<TensorInfo>& infos);
/// The name with # in place of numbers.
std::string name_kind(std::string_view name);

/// Derives the reciprocals that a repair turns.
void derive_reciprocals(MendedState& state, const MendNote* note);
/// Derives global and block scales of folded modules, and the loss.
void derive_folds(MendedState& state, const MendNote* note);
/// Derives scales of inputs.
void derive_input_scales(MendedState& state, const MendNote* note);
/// Derives scales of the KV cache.
void derive_cache_scales(MendedState& state, const MendNote* note);

}  // namespace twofour
