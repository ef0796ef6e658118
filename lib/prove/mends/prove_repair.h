#pragma once
#include <cstdint>

#include "lib/base/threads/progress.h"
#include "lib/prove/mends/mended_state.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The result of proving a repair.
struct RepairProof {
  Findings differences;                           ///< a single one makes the result wrong
  uint64_t source_tensors = 0, source_bytes = 0;  ///< tensors and bytes that are in the result, or that a
                                                  ///< mend dropped
};

/// True if a mend took something from a donor.
bool takes_from_donor(const RepairNote& note);
/// The weight files of the source that cannot be read and whose tensors come from the donor, by the records.
std::set<std::string> files_of_donor(const RepairNote& note);

/// Compares a repaired checkpoint with what the recorded mends must have made of the broken source. It
/// compares every byte of the tensors, every config and text file, the index, and the records of the mends.
/// `source` and `loose` come from Checkpoint::open_loosely(). `donor` is null if nothing was taken from one.
/// It shares no code with lib/repair.
RepairProof prove_repair(const Checkpoint& artifact, const RepairSettings& settings, const RepairNote& note,
                         const Checkpoint& source, const LooseFiles& loose, const Checkpoint* donor,
                         Progress& progress);

/// Follows the mends of files, names and modules. Weight files that stay beside the result's are put into
/// `beside`.
void follow_files(MendedState& state, const MendNote* note, const Checkpoint& artifact,
                  const Checkpoint& source, const LooseFiles& loose, std::set<std::string>& beside);
void follow_names(MendedState& state, const MendNote* note);
void follow_donor_tensors(MendedState& state, const MendNote* note, const Checkpoint& source,
                          const LooseFiles& loose);
/// Follows the mend that takes modules with damaged bytes from the donor. Reads every byte of the source.
void follow_donor_bytes(MendedState& state, const MendNote* note, const Checkpoint& source);

/// The values of a size of the language model that its tensors show: "num_hidden_layers". Empty: they do not
/// show it.
std::set<int64_t> shown_sizes(const MendedState& state, const std::string& key);
/// True for numbers of generation_config.json that are known to be invalid.
bool is_out_of_range(const std::string& key, const Json& value);
/// True for numbers of generation_config.json that are known to be valid.
bool is_in_range(const std::string& key, const Json& value);

/// The setting with a key such as "hidden_size" or "text_config.hidden_size". Null if there is none.
Json* setting_at(Json& config, const std::string& key);
/// A value as JSON, or "absent".
std::string shown(const Json& value);
/// The first key in which two configs differ, in words.
std::string first_difference(const Json& expected, const Json& found);
/// The config without entries about quantization.
Json without_quantization(Json config);

}  // namespace twofour
