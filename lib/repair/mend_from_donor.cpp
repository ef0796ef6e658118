#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string_view>

#include "formats/error.h"
#include "formats/module_names.h"
#include "formats/naming.h"
#include "lib/base/findings/options.h"
#include "lib/base/findings/problems.h"
#include "lib/base/io/file.h"
#include "lib/base/io/links.h"
#include "lib/lint/family/family.h"
#include "lib/repair/repair.h"
#include "lib/source/config/model_config.h"
#include "lib/source/linears/linears.h"

namespace twofour {

namespace {

/// The module that is taken as a whole with a tensor of it: "model.layers.0.mlp.up_proj".
std::string whole_module_of(std::string_view tensor) { return std::string(module_of(tensor)); }

class DonorTensors {
 public:
  DonorTensors(Repair& repair, MendRecord& record) : r_(repair), record_(record) {}

  bool run() {
    for (const LintFinding* f :
         r_.found({"incomplete-module", "bad-global-scale", "module-shape", "quantized-head",
                   "quantized-router", "expert-shape", "gate-up-shape", "tensor-type", "config-shape"})) {
      if (!f->name.empty() && f->file != "config.json") broken_[broken_module(f->name)] = f;
    }
    const auto lost =
        r_.found({"head-missing", "tensor-missing", "experts-missing", "layers-missing", "mtp-missing"});
    for (const LintFinding* f : r_.found_in_source({"missing-shard", "index-stale-tensor", "not-downloaded",
                                                    "bad-header", "file-size", "data-holes"})) {
      const std::string_view rule = lint_rules()[f->rule].id;
      if (rule == "missing-shard" || rule == "index-stale-tensor" || r_.broken.contains(f->file))
        missing_.push_back(f);
    }
    missing_.insert(missing_.end(), lost.begin(), lost.end());
    if (broken_.empty() && missing_.empty()) return false;
    if (r_.donor == nullptr) return leave_all();
    note_rules();
    refuse_other_model(r_);
    bool mended = false;
    const std::set<std::string> unlike = unlike_modules();
    const bool all = !broken_rules_.empty() && unlike.size() > 1 && replace_all(unlike);
    mended = all;
    for (const auto& [module, rule] : std::map(broken_rules_)) {
      if (has_lost_part(module) && !missing_rules_.empty()) continue;  // it comes with what is missing
      if (!all || !unlike.contains(module)) mended = replace(module, rule) || mended;
    }
    if (!missing_rules_.empty()) mended = add_missing() || mended;
    if (!mended) record_.rules.clear();
    return mended;
  }

 private:
  /// A finding names a tensor or a module.
  std::string broken_module(const std::string& name) {
    const Checkpoint& c = r_.view();
    return c.find(name) ? whole_module_of(name) : name;
  }
  /// Copies the texts of findings, because findings are discarded when the state changes.
  void note_rules() {
    for (const auto& [module, f] : broken_) broken_rules_[module] = lint_rules()[f->rule].id;
    for (const LintFinding* f : missing_) {
      missing_rules_.insert(lint_rules()[f->rule].id);
      missing_names_.insert(f->name);
    }
  }
  bool leave_all() {
    const auto leave = [&](const LintFinding& f) {
      const std::string rule = lint_rules()[f.rule].id;
      if (f.severity != Severity::kNote)
        r_.leave(
            rule, f.where(),
            fmt::format("expected {} of the same model, which has the tensors, found none", options::kDonor));
    };
    for (const auto& [module, f] : broken_) leave(*f);
    for (const LintFinding* f : missing_) leave(*f);
    return false;
  }

  /// The modules with a tensor whose type or shape differs from the donor's tensor of that name.
  std::set<std::string> unlike_modules() const {
    std::set<std::string> modules;
    for (const EditedTensor& t : r_.edited.tensors) {
      const auto at = r_.donor->find(t.info.name);
      if (!at) continue;
      const TensorInfo& other = r_.donor->tensors()[*at];
      if (other.dtype != t.info.dtype || other.shape != t.info.shape)
        modules.insert(whole_module_of(t.info.name));
    }
    return modules;
  }
  /// True if some of the donor's tensors are parts of codes that no module of the state has: it is in another
  /// dialect.
  bool are_spelled_otherwise(const std::vector<size_t>& comes) const {
    const auto leaf = [](const std::string& name) { return name.substr(name.rfind('.') + 1); };
    std::set<std::string> known;
    for (const EditedTensor& t : r_.edited.tensors) known.insert(leaf(t.info.name));
    return std::any_of(comes.begin(), comes.end(), [&](size_t i) {
      const TensorInfo& t = r_.donor->tensors()[i];
      const bool is_part = !is_float(t.dtype) || t.name.find("_scale") != t.name.npos;
      return is_part && !known.contains(leaf(t.name));
    });
  }
  /// Replaces several modules at once, of which lint names one.
  bool replace_all(const std::set<std::string>& modules) {
    std::set<std::string> goes;
    for (const EditedTensor& t : r_.edited.tensors) {
      if (modules.contains(whole_module_of(t.info.name))) goes.insert(r_.origin_of(t));
    }
    std::vector<size_t> comes;
    for (size_t i = 0; i < r_.donor->tensors().size(); ++i) {
      if (modules.contains(whole_module_of(r_.donor->tensors()[i].name))) comes.push_back(i);
    }
    if (are_spelled_otherwise(comes)) return false;
    const bool mended = r_.try_change([&] {
      std::erase_if(r_.edited.tensors,
                    [&](const EditedTensor& t) { return modules.contains(whole_module_of(t.info.name)); });
      for (const size_t i : comes) add(i);
    });
    if (!mended) return false;
    record_.dropped.merge(goes);
    for (const auto& [module, rule] : broken_rules_) record_.rules.insert(rule);
    for (const size_t i : comes) list(i);
    return true;
  }

  /// Replaces all tensors of a module by the donor's.
  bool replace(const std::string& module, const std::string& rule) {
    const auto comes = tensors_of(module);
    if (comes.empty()) {
      r_.leave(rule, module, "the donor has no such module");
      return false;
    }
    if (are_spelled_otherwise(comes)) {
      r_.leave(rule, module, "the donor has the module in another dialect");
      return false;
    }
    const bool wants_floats = rule == "quantized-head" || rule == "quantized-router";
    if (wants_floats && !is_float(r_.donor->tensors()[comes[0]].dtype)) return false;
    const auto change = [&] {
      std::erase_if(r_.edited.tensors,
                    [&](const EditedTensor& t) { return whole_module_of(t.info.name) == module; });
      for (const size_t i : comes) add(i);
    };
    std::set<std::string> goes;
    for (const EditedTensor& t : r_.edited.tensors) {
      if (whole_module_of(t.info.name) == module) goes.insert(r_.origin_of(t));
    }
    if (wants_floats) {
      change();
      r_.changed();
    } else if (!r_.try_change(change)) {
      r_.leave(rule, module, "with the donor's module there are as many findings");
      return false;
    }
    record_.dropped.merge(goes);
    record_.rules.insert(rule);
    for (const size_t i : comes) list(i);
    return true;
  }

  std::vector<size_t> tensors_of(const std::string& module) const {
    std::vector<size_t> tensors;
    for (size_t i = 0; i < r_.donor->tensors().size(); ++i) {
      if (whole_module_of(r_.donor->tensors()[i].name) == module) tensors.push_back(i);
    }
    return tensors;
  }

  /// Adds the modules of the donor that are lost.
  bool add_missing() {
    std::set<std::string> present;
    for (const EditedTensor& t : r_.edited.tensors) present.insert(whole_module_of(t.info.name));
    const int64_t layers = model_layers(r_.edited.config);
    const bool wants_drafts = missing_rules_.contains("mtp-missing");
    // Modules that lost a part are taken as a whole.
    std::set<std::string> split;
    for (const TensorInfo& t : r_.donor->tensors()) {
      std::string module = whole_module_of(t.name);
      if (present.contains(module) && is_lost(t.name)) split.insert(std::move(module));
    }
    std::vector<size_t> comes;
    for (size_t i = 0; i < r_.donor->tensors().size(); ++i) {
      const std::string& name = r_.donor->tensors()[i].name;
      const std::string module = whole_module_of(name);
      if (present.contains(module) && !missing_names_.contains(name) && !split.contains(module)) continue;
      if (module_role(module, layers) == ModuleRole::kMtp && !wants_drafts && !is_lost(name)) continue;
      comes.push_back(i);
    }
    std::set<std::string> goes;
    for (const EditedTensor& t : r_.edited.tensors) {
      if (split.contains(whole_module_of(t.info.name))) goes.insert(r_.origin_of(t));
    }
    const auto add_all = [&] {
      std::erase_if(r_.edited.tensors,
                    [&](const EditedTensor& t) { return split.contains(whole_module_of(t.info.name)); });
      for (const size_t i : comes) add(i);
    };
    const bool is_renamed = std::any_of(comes.begin(), comes.end(),
                                        [&](size_t i) { return has_other_name(r_.donor->tensors()[i]); });
    std::vector<size_t> unnamed = comes;  // the index names the others
    std::erase_if(unnamed, [&](size_t i) { return is_lost(r_.donor->tensors()[i].name); });
    const bool may_come = !comes.empty() && !is_renamed && !are_spelled_otherwise(unnamed);
    bool mended = may_come && r_.try_change(add_all, {"head-missing", "tensor-missing", "experts-missing",
                                                      "layers-missing", "mtp-missing"});
    if (may_come && !mended) {
      // Nothing but the index says that the model has them.
      std::erase_if(comes, [&](size_t i) {
        const std::string& name = r_.donor->tensors()[i].name;
        return !is_lost(name) && !split.contains(whole_module_of(name));
      });
      mended = !comes.empty() && change_without_faults(add_all);
    }
    if (!mended) {
      const auto left =
          r_.found({"head-missing", "tensor-missing", "experts-missing", "layers-missing", "mtp-missing"});
      // An index may name what the model never had.
      if (left.empty() && r_.broken.empty()) return false;
      for (const std::string& rule : missing_rules_)
        r_.leave(rule, r_.donor->path().string(), "the donor does not have what is missing");
      return false;
    }
    record_.rules.insert(missing_rules_.begin(), missing_rules_.end());
    record_.files.insert(r_.broken.begin(), r_.broken.end());
    record_.dropped.merge(goes);
    for (const size_t i : comes) list(i);
    return true;
  }

  /// True for a tensor that the source's index names and no file has.
  bool is_lost(const std::string& name) const {
    return std::any_of(r_.lost.begin(), r_.lost.end(),
                       [&](const std::string& lost) { return lost == name || unwrapped(lost) == name; });
  }
  bool has_lost_part(const std::string& module) const {
    return std::any_of(r_.lost.begin(), r_.lost.end(), [&](const std::string& lost) {
      return whole_module_of(lost) == module || whole_module_of(unwrapped(lost)) == module;
    });
  }
  /// Makes a change unless there are more faults with it.
  bool change_without_faults(const std::function<void()>& change) {
    const size_t before = r_.faults();
    Edited saved = r_.edited;
    change();
    r_.changed();
    if (r_.faults() <= before) return true;
    r_.edited = std::move(saved);
    r_.changed();
    return false;
  }

  /// True if the state has a tensor under the name without its first parts.
  bool has_other_name(const TensorInfo& t) {
    std::string_view name = t.name;
    for (int parts = 0; parts < 2 && name.find('.') != name.npos; ++parts) {
      name.remove_prefix(name.find('.') + 1);
      const EditedTensor* const other = r_.find(name);
      if (other != nullptr && other->info.shape == t.shape) return true;
    }
    return false;
  }

  void add(size_t tensor) {
    const TensorInfo& t = r_.donor->tensors()[tensor];
    const auto first = static_cast<uint32_t>(r_.source.shards().size());
    r_.edited.tensors.push_back({t, first + r_.donor->shard_index_of(tensor), t.begin});
  }
  void list(size_t tensor) {
    const TensorInfo& t = r_.donor->tensors()[tensor];
    record_.takes_from_donor = true;
    record_.tensors[t.name] = "";
    record_.from_donor.insert(t.name);
    record_.bytes += t.bytes();
  }

  Repair& r_;
  MendRecord& record_;
  std::map<std::string, const LintFinding*> broken_;
  std::vector<const LintFinding*> missing_;
  std::map<std::string, std::string> broken_rules_;
  std::set<std::string> missing_rules_, missing_names_;
};

}  // namespace

bool mend_from_donor_tensors(Repair& repair, MendRecord& record) {
  return DonorTensors(repair, record).run();
}

}  // namespace twofour
