#include <omp.h>

#include <algorithm>
#include <map>

#include "formats/module_names.h"
#include "lib/base/names/lookup_parts.h"
#include "lib/lint/family/family.h"
#include "lib/lint/lint.h"
#include "lib/repair/open_repaired.h"
#include "lib/repair/repair.h"

namespace twofour {
namespace {

/// Replaces modules whose names, types and shapes are right but whose bytes are damaged.
class DonorBytes {
 public:
  DonorBytes(Repair& repair, MendRecord& record) : r_(repair), record_(record) {}

  bool run() {
    if (r_.donor == nullptr || !r_.donor->is_directory() || !wants_any()) return false;
    const Faults ours = faults_of(r_.source.path());
    if (ours.empty()) return false;
    refuse_other_model(r_);
    theirs_ = faults_of(r_.donor->path());
    bool mended = false;
    for (const auto& [name, rules] : ours) mended = replace(name, rules) || mended;
    return mended;
  }

 private:
  static constexpr std::string_view kCopy = "identical-weights";
  using Faults = std::map<std::string, std::set<std::string>>;  ///< rules by the name in a finding

  static const std::vector<std::string_view>& rules() {
    static const auto& mine = *std::find_if(mends().begin(), mends().end(),
                                            [](const Mend& m) { return m.apply == mend_from_donor_bytes; });
    return mine.rules;
  }
  bool wants_any() const {
    return std::any_of(rules().begin(), rules().end(), [&](auto rule) { return r_.wants(rule); });
  }
  Faults faults_of(const std::filesystem::path& path) const {
    LintOptions options;
    options.jobs = omp_get_max_threads();
    Progress progress;
    Faults faults;
    collect(lint(path, options, progress).findings, faults);
    return faults;
  }
  /// Notes the modules that findings and their consequences name.
  void collect(const std::vector<LintFinding>& findings, Faults& faults) const {
    for (const LintFinding& f : findings) {
      collect(f.consequences, faults);
      const std::string id = lint_rules()[f.rule].id;
      const bool is_mine = std::find(rules().begin(), rules().end(), id) != rules().end();
      if (!is_mine || f.severity == Severity::kNote || f.name.empty() || !r_.wants(id)) continue;
      faults[f.name].insert(id);
      if (id == kCopy) faults[other_of(f.message)].insert(id);
    }
  }
  /// The second of two equal modules: "found those of NAME". Either can be the copy.
  static std::string other_of(std::string_view message) {
    const size_t begin = message.find(" of ", message.find("found"));
    if (begin == message.npos) return "";
    const std::string_view rest = message.substr(begin + 4);
    return std::string(rest.substr(0, rest.find(' ')));
  }

  /// Returns the repaired module that a finding of the source names. Empty if there is none.
  std::string module_named(const std::string& name) const {
    const auto has = [&](const std::string& module) {
      return std::any_of(r_.edited.tensors.begin(), r_.edited.tensors.end(),
                         [&](const EditedTensor& t) { return module_of(t.info.name) == module; });
    };
    for (const std::string& tried : {name, std::string(unwrapped(name))}) {
      if (r_.find(tried) != nullptr) return std::string(module_of(tried));
      if (has(tried)) return tried;
    }
    return "";
  }

  /// Replaces the module that a finding names by the donor's.
  bool replace(const std::string& name, const std::set<std::string>& why) {
    const std::string module = module_named(name);
    const auto leave = [&](const char* text) {
      r_.leave(*why.begin(), module.empty() ? name : module, text);
      return false;
    };
    if (name.empty()) return false;
    if (module.empty()) return leave("no module of this name is in the result");
    if (done_.contains(module)) {
      record_.rules.insert(why.begin(), why.end());
      return true;
    }
    const auto own = static_cast<uint32_t>(r_.source.shards().size());
    std::vector<EditedTensor> ours;
    for (const EditedTensor& t : r_.edited.tensors) {
      if (module_of(t.info.name) != module) continue;
      if (t.shard >= own) return false;  // it is the donor's already
      ours.push_back(t);
    }
    std::vector<size_t> comes;
    for (size_t i = 0; i < r_.donor->tensors().size(); ++i) {
      if (module_of(r_.donor->tensors()[i].name) == module) comes.push_back(i);
    }
    if (!are_alike(ours, comes)) return leave("the donor has no such module in the same format");
    if (are_equal(ours, comes)) {
      if (why == std::set<std::string>{std::string(kCopy)}) return false;  // the other one is the copy
      return leave("the donor's module has the same bytes");
    }
    for (const auto& [other, rules_there] : theirs_) {
      const bool is_it = other == module || other == name || module_of(other) == module;
      if (is_it) return leave("the donor's module has a fault of its own");
    }
    const size_t before = r_.faults();
    Edited saved = r_.edited;
    std::set<std::string> goes;
    for (const EditedTensor& t : ours) goes.insert(r_.origin_of(t));
    std::erase_if(r_.edited.tensors, [&](const EditedTensor& t) { return module_of(t.info.name) == module; });
    for (const size_t i : comes) {
      const TensorInfo& t = r_.donor->tensors()[i];
      r_.edited.tensors.push_back({t, own + r_.donor->shard_index_of(i), t.begin});
    }
    r_.changed();
    if (r_.faults() > before) {
      r_.edited = std::move(saved);
      r_.changed();
      return leave("with the donor's module there are more findings");
    }
    for (const size_t i : comes) {
      const TensorInfo& t = r_.donor->tensors()[i];
      record_.tensors[t.name] = "";
      record_.from_donor.insert(t.name);
      record_.bytes += t.bytes();
    }
    record_.takes_from_donor = true;
    record_.dropped.merge(goes);
    record_.rules.insert(why.begin(), why.end());
    done_.insert(module);
    return true;
  }

  bool are_alike(const std::vector<EditedTensor>& ours, const std::vector<size_t>& comes) const {
    if (ours.size() != comes.size()) return false;
    return std::all_of(ours.begin(), ours.end(), [&](const EditedTensor& t) {
      const auto at = r_.donor->find(t.info.name);
      return at && r_.donor->tensors()[*at].dtype == t.info.dtype &&
             r_.donor->tensors()[*at].shape == t.info.shape;
    });
  }
  bool are_equal(const std::vector<EditedTensor>& ours, const std::vector<size_t>& comes) {
    constexpr uint64_t kPiece = 1u << 20;
    std::vector<uint8_t> a, b;
    for (size_t i = 0; i < ours.size(); ++i) {
      const size_t mine = *r_.view().find(r_.donor->tensors()[comes[i]].name);
      const uint64_t bytes = r_.donor->tensors()[comes[i]].bytes();
      for (uint64_t at = 0; at < bytes; at += kPiece) {
        a.resize(std::min(kPiece, bytes - at));
        b.resize(a.size());
        r_.view().read(mine, at, a);
        r_.donor->read(comes[i], at, b);
        if (a != b) return false;
      }
    }
    return true;
  }

  Repair& r_;
  MendRecord& record_;
  Faults theirs_;
  std::set<std::string> done_;
};

}  // namespace

bool mend_from_donor_bytes(Repair& repair, MendRecord& record) { return DonorBytes(repair, record).run(); }

}  // namespace twofour
