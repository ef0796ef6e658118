#pragma once
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "formats/json.h"
#include "lib/base/findings/finding.h"
#include "lib/graft/edited_checkpoint.h"
#include "lib/lint/rules/rules.h"
#include "lib/recipe/artifact/edit.h"
#include "lib/source/checkpoint/checkpoint.h"

namespace twofour {

/// The changes by one mend. twofour.json lists it under `source.mends`.
struct MendRecord {
  /// A key of a config file, with its values as JSON. null: absent.
  struct Setting {
    std::string file, key;
    Json before, after;
  };
  std::string mend;                  ///< name of the mend
  std::set<std::string> rules = {};  ///< lint rules that led to it
  std::map<std::string, std::string>
      tensors;  ///< tensors that were made, changed or taken, by name in the
                ///< result, with the bits of their numbers in hexadecimal or ""
  std::map<std::string, std::pair<float, float>> numbers =
      {};                              ///< single numbers before and after, by tensor
  std::set<std::string> dropped = {};  ///< tensors of the source that are removed: "FILE: NAME"
  std::set<std::string> files = {};    ///< files that are removed, added or rewritten
  std::vector<Setting> settings = {};
  std::string prefix = {};  ///< a prefix that is removed from the names of all tensors: "model."
  std::map<std::string, double> loss = {};  ///< relative error in the Frobenius norm, by module
  bool takes_from_donor = false;
  std::set<std::string> from_donor = {};  ///< tensors that are the donor's
  std::string origin = {};                ///< where other numbers come from: "neighbours"
  uint64_t bytes = 0;                     ///< size of the tensors and files that change
};
Json mend_to_json(const MendRecord& record);

/// A checkpoint while it is mended: the tensors, their sources and the configs, as far as mends have changed
/// them.
class Repair {
 public:
  /// The sources must outlive this object. `loose` and `report`, the findings of lint by headers, are about
  /// `source`. `donor` may be null.
  Repair(const Checkpoint& source, const LooseFiles& loose, const Checkpoint* donor,
         const RepairSettings& settings, const LintReport& report);

  const Checkpoint& source;
  const LooseFiles& loose;
  const Checkpoint* const donor;
  const RepairSettings& settings;
  const LintReport& report;  ///< findings of the source's headers and files
  /// Weight files of the source that cannot be read, and tensors that its index names and no file has.
  std::set<std::string> broken = {}, lost = {};
  Edited edited;
  Findings unmended = {};  ///< findings beyond repair, and why

  /// True if findings of a rule are to be mended.
  bool wants(std::string_view rule) const;
  /// The findings of the source's headers and files by these rules that are to be mended.
  std::vector<const LintFinding*> found_in_source(std::initializer_list<std::string_view> rules) const;
  /// The same of the present state, without consequences. Valid until the state changes.
  std::vector<const LintFinding*> found(std::initializer_list<std::string_view> rules);
  /// The number of warnings and errors in the present state.
  size_t faults();
  /// The present state as a checkpoint. Valid until the state changes.
  const Checkpoint& view();
  /// Notes that the state changed. Sorts the tensors.
  void changed();
  /// Calls `change`, which changes the state. Undoes the change and returns false unless it lowers the number
  /// of faults.
  /// With `rules`, only their findings count.
  bool try_change(const std::function<void()>& change, std::initializer_list<std::string_view> rules = {});

  /// The first fault of the state that the last try_change() refused.
  const std::string& rejected() const { return rejected_; }

  EditedTensor* find(std::string_view name);
  /// Adds tensors with known bytes, or gives these to the ones of that name. `record` gets their names and,
  /// of numbers in float32, their bits.
  struct NewTensor {
    std::string name;
    DType dtype;
    std::vector<int64_t> shape;
    std::vector<uint8_t> bytes;
  };
  void set(std::vector<NewTensor> tensors, MendRecord& record);
  /// Removes tensors for which `goes` returns true, and lists them.
  void drop(const std::function<bool(const EditedTensor&)>& goes, MendRecord& record);
  /// The place of a tensor in its source: "FILE: NAME".
  std::string origin_of(const EditedTensor& tensor) const;
  /// Adds a finding that no mend mends.
  void leave(std::string_view rule, std::string where, std::string why);

 private:
  /// Records a number that replaces another.
  void note_number(const NewTensor& tensor, MendRecord& record);

  std::optional<Checkpoint> view_;
  std::optional<LintReport> lint_;
  std::string rejected_;
};

/// One kind of mend.
struct Mend {
  const char* name;
  std::vector<std::string_view> rules;  ///< lint rules whose findings it mends
  /// Changes the state and fills the record. Returns false, with the state unchanged, if there is nothing to
  /// mend.
  bool (*apply)(Repair& repair, MendRecord& record);
};
/// All mends in the order in which they are applied.
const std::vector<Mend>& mends();

bool mend_files(Repair& repair, MendRecord& record);
bool mend_names(Repair& repair, MendRecord& record);
bool mend_sizes(Repair& repair, MendRecord& record);
bool mend_from_donor_files(Repair& repair, MendRecord& record);
bool mend_from_donor_tensors(Repair& repair, MendRecord& record);
bool mend_from_donor_bytes(Repair& repair, MendRecord& record);
bool mend_generation(Repair& repair, MendRecord& record);
bool mend_reciprocals(Repair& repair, MendRecord& record);
bool mend_folds(Repair& repair, MendRecord& record);
bool mend_input_scales(Repair& repair, MendRecord& record);
bool mend_cache_scales(Repair& repair, MendRecord& record);
bool mend_quantization(Repair& repair, MendRecord& record);

/// Throws Error unless the donor is a model of the same type, tensors in floats that both have are of one
/// shape, and some of them have the same numbers.
void refuse_other_model(Repair& repair);

/// The name of a module and the type of its numbers, with which modules of other layers and experts are
/// alike.
std::string kind_of(const std::string& module);
/// The member of a config with a key, at the top or in a config of the language model. Null if it is missing.
Json* find_setting(Json& config, const std::string& key);
/// The numbers of a float32 tensor of at most 1 MiB of a checkpoint; empty for any other.
std::vector<float> floats_of(const Checkpoint& checkpoint, size_t tensor);
std::vector<uint8_t> bytes_of(const std::vector<float>& values);

}  // namespace twofour
