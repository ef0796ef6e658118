#include <algorithm>

#include "formats/error.h"
#include "lib/base/io/file.h"
#include "lib/repair/repair.h"

namespace twofour {

Json* find_setting(Json& config, const std::string& key) {
  const size_t dot = key.find('.');
  if (dot != key.npos) {
    const auto at = config.find(key.substr(0, dot));
    return at == config.end() || !at->is_object() ? nullptr : find_setting(*at, key.substr(dot + 1));
  }
  if (const auto at = config.find(key); at != config.end()) return &*at;
  for (const char* nested : {"text_config", "llm_config", "language_config"}) {
    const auto at = config.find(nested);
    if (at == config.end() || !at->is_object()) continue;
    if (Json* const found = find_setting(*at, key)) return found;
  }
  return nullptr;
}

bool mend_sizes(Repair& r, MendRecord& record) {
  if (!r.edited.config.is_object()) return false;
  struct Change {
    std::string rule, key;
    Json value;
    bool from_donor = false;
  };
  std::set<std::string> tried;
  for (bool again = true; again;) {  // a size that is right may show the next one
    again = false;
    std::vector<Change> changes;
    for (const LintFinding* f :
         r.found({"config-shape", "padded-vocabulary", "layers-extra", "config-switch", "experts-extra"})) {
      if (f->file != "config.json" || f->facts.value.empty()) continue;
      changes.push_back({lint_rules()[f->rule].id, f->name, parse_json(f->name, f->facts.value)});
    }
    // The donor's value fits if the tensors are the same.
    for (const LintFinding* f :
         r.found({"config-shape", "padded-vocabulary", "layers-extra", "layers-missing", "layer-kind",
                  "config-switch", "experts-extra", "odd-setting", "impossible-setting"})) {
      if (r.donor == nullptr || f->file != "config.json" || !r.donor->config().is_object()) continue;
      Json theirs = r.donor->config();
      // Some findings name two keys: "first_k_dense_replace, moe_layer_freq".
      for (size_t begin = 0, end = 0; end != f->name.npos; begin = end + 2) {
        end = f->name.find(", ", begin);
        const std::string key = f->name.substr(begin, end == f->name.npos ? end : end - begin);
        const Json* const value = find_setting(theirs, key);
        if (value != nullptr) changes.push_back({lint_rules()[f->rule].id, key, *value, true});
      }
    }
    for (const Change& change : changes) {
      if (change.from_donor ? !tried.insert(change.key + " donor").second
                            : !tried.insert(change.key).second) {
        continue;
      }
      Json before;
      const bool mended = r.try_change([&] {
        if (Json* const setting = find_setting(r.edited.config, change.key)) {
          before = *setting;
          *setting = change.value;
        } else {
          r.edited.config[change.key] = change.value;
        }
      });
      record.takes_from_donor = record.takes_from_donor || (mended && change.from_donor);
      if (!mended) {
        if (!change.from_donor)
          r.leave(change.rule, "config.json: " + change.key, "the value that fits contradicts another");
        continue;
      }
      record.rules.insert(change.rule);
      record.settings.push_back({"config.json", change.key, before, change.value});
      again = true;
    }
  }
  if (record.settings.empty()) return false;
  record.files.insert("config.json");
  return true;
}

bool mend_generation(Repair& r, MendRecord& record) {
  constexpr const char* kFile = "generation_config.json";
  if (r.edited.texts.contains(kFile)) return false;  // it is the donor's
  std::vector<const LintFinding*> findings;
  for (const LintFinding* f : r.found_in_source({"odd-setting", "impossible-setting"})) {
    if (f->file == kFile) findings.push_back(f);
  }
  if (findings.empty()) return false;
  Json config = parse_json(kFile, read_text(r.source.open_again(kFile)));
  for (const LintFinding* f : findings) {
    const std::string key = f->name.substr(0, f->name.find_first_of(".["));
    const auto at = config.find(key);
    if (at == config.end()) continue;
    record.settings.push_back({kFile, key, *at, nullptr});
    record.rules.insert(lint_rules()[f->rule].id);
    config.erase(key);
  }
  if (record.settings.empty()) return false;
  r.edited.texts[kFile] = format_json(config);
  record.files.insert(kFile);
  record.bytes += r.edited.texts[kFile].size();
  return true;
}

}  // namespace twofour
