#include <algorithm>
#include <set>

#include "lib/lint/family/family.h"
#include "lib/repair/repair.h"

namespace twofour {

bool mend_names(Repair& r, MendRecord& record) {
  const auto findings = r.found({"name-prefix"});
  if (findings.empty()) return false;
  const std::string name = findings[0]->name, right = findings[0]->facts.value;
  std::string prefix;
  if (unwrapped(name) != right) {
    if (!name.ends_with("." + right)) return false;
    prefix = name.substr(0, name.size() - right.size());
  }
  std::set<std::string> names;
  std::vector<std::string> all;
  for (const EditedTensor& t : r.edited.tensors) {
    const std::string& own = t.info.name;
    all.push_back(prefix.empty()            ? unwrapped(own)
                  : own.starts_with(prefix) ? own.substr(prefix.size())
                                            : own);
    if (all.back().empty() || !names.insert(all.back()).second) {
      r.leave("name-prefix", own, "without its prefix it has the name of another tensor");
      return false;
    }
  }
  const bool mended = r.try_change([&] {
    for (size_t i = 0; i < all.size(); ++i) r.edited.tensors[i].info.name = all[i];
  });
  if (!mended) return false;
  record.rules = {"name-prefix"};
  record.prefix = prefix.empty() ? "wrappers" : prefix;
  return true;
}

}  // namespace twofour
