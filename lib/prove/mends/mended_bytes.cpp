#include <omp.h>

#include <sstream>

#include "formats/module_names.h"
#include "lib/lint/lint.h"
#include "lib/prove/mends/prove_repair.h"

namespace twofour {
namespace {

using FaultsByName = std::map<std::string, std::set<std::string>>;

/// Notes the rules of findings by the tensors and modules that they name, also in their texts: of two equal
/// modules, either is the copy.
void note_faults(const std::vector<LintFinding>& findings, FaultsByName& faults) {
  for (const LintFinding& f : findings) {
    note_faults(f.consequences, faults);
    if (f.severity == Severity::kNote) continue;
    const std::string rule = lint_rules()[f.rule].id;
    faults[f.name].insert(rule);
    if (rule != "identical-weights") continue;
    std::istringstream words(f.message);
    for (std::string word; words >> word;) faults[word].insert(rule);
  }
}

FaultsByName faults_by_name(const Checkpoint& source) {
  LintOptions options;
  options.jobs = omp_get_max_threads();
  Progress progress;
  FaultsByName faults;
  note_faults(lint(source.path(), options, progress).findings, faults);
  return faults;
}

bool have_same_bytes(const MendedTensor& a, const MendedTensor& b) {
  constexpr uint64_t kPiece = 1u << 20;
  std::vector<uint8_t> x, y;
  for (uint64_t at = 0; at < a.info.bytes(); at += kPiece) {
    x.resize(std::min(kPiece, a.info.bytes() - at));
    y.resize(x.size());
    a.read(at, x);
    b.read(at, y);
    if (x != y) return false;
  }
  return true;
}

}  // namespace

void follow_donor_bytes(MendedState& state, const MendNote* note, const Checkpoint& source) {
  if (note == nullptr) return;
  if (state.donor == nullptr) {
    state.differ("mend", note->mend, "expected a donor, whose modules a record has, found none");
    return;
  }
  const auto faults = faults_by_name(source);
  std::map<std::string, std::map<std::string, MendedTensor>> given;  // the donor's tensors, by module
  for (size_t i = 0; i < state.donor->tensors().size(); ++i) {
    const TensorInfo& t = state.donor->tensors()[i];
    given[std::string(module_of(t.name))][t.name] = {t, state.donor, i};
  }
  std::set<std::string> modules, places, listed;
  for (const std::string& name : note->tensors) modules.insert(std::string(module_of(name)));
  for (const std::string& module : modules) {
    std::set<std::string> rules, names;  // of the findings, and of the module's tensors
    bool is_changed = false;
    for (const auto& [name, t] : state.tensors) {
      if (module_of(name) != module) continue;
      names.insert(name);
      const auto other = given[module].find(name);
      if (t.from != &source || other == given[module].end() || other->second.info.dtype != t.info.dtype ||
          other->second.info.shape != t.info.shape) {
        state.differ("mend", name, "expected the donor to have it in the same type and shape, found not");
        continue;
      }
      is_changed = is_changed || !have_same_bytes(t, other->second);
      const std::string& before = source.tensors()[t.tensor].name;
      places.insert(source.shard_of(t.tensor).name + ": " + before);
      for (const std::string& found : {before, std::string(module_of(before))}) {
        if (const auto at = faults.find(found); at != faults.end())
          rules.insert(at->second.begin(), at->second.end());
      }
    }
    std::erase_if(rules, [&](const std::string& rule) { return !note->rules.contains(rule); });
    if (rules.empty() || !is_changed)
      state.differ("mend", module, "expected damaged bytes of this module in the source, found none");
    for (const auto& [name, t] : given[module]) {
      if (!names.contains(name)) state.differ("mend", name, "expected a tensor that the source has");
      listed.insert(name);
      state.tensors[name] = t;
    }
  }
  if (listed != note->tensors)
    state.differ("mend", note->mend, "expected whole modules of the donor in the record, found parts");
  if (places != note->dropped)
    state.differ("mend", note->mend,
                 "expected the source's tensors of these modules as dropped, found others");
}

}  // namespace twofour
