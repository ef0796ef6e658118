#include "tools/text/validate_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>

#include "lib/base/findings/and_more.h"
#include "lib/base/names/name_tree.h"
#include "lib/base/names/natural.h"
#include "tools/console/print.h"

namespace twofour {

void sort_differences(Findings& differences) {
  for (auto from = differences.begin(); from != differences.end();) {
    const auto to = std::find_if(from, differences.end(), [&](const Finding& f) { return f.id != from->id; });
    std::stable_sort(from, to,
                     [](const Finding& a, const Finding& b) { return natural_less(a.where, b.where); });
    from = to;
  }
}

void print_differences(const Findings& differences, bool all) {
  constexpr size_t kFew = 10, kFewLines = 20;
  struct Alike {
    const Finding* first;
    size_t count = 0;
  };
  std::vector<Alike> lines;
  std::map<std::pair<std::string, std::string>, size_t> known;
  for (const Finding& f : differences) {
    const std::string name = all || differences.size() <= kFew ? std::to_string(lines.size())
                                                               : split_numbers(f.where).name_template;
    const auto [at, is_new] = known.try_emplace({f.id, name}, lines.size());
    if (is_new) lines.push_back({&f});
    ++lines[at->second].count;
  }
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i == kFewLines && !all && lines.size() > kFewLines + 1) {
      print_stdout("... and {} more kinds (--verbose shows all)\n", lines.size() - i);
      return;
    }
    const Finding& f = *lines[i].first;
    print_coloured(stdout, f.severity, severity_name(f.severity));
    print_stdout(": {}: {} [{}]{}\n", f.where, f.message, f.id,
                 and_more(lines[i].count, " and {} more of other numbers (--verbose shows all)"));
  }
}

void print_mends(const std::vector<ProvenMend>& mends, bool all) {
  constexpr size_t kFew = 6;
  for (const ProvenMend& mend : mends) {
    std::vector<std::string> names;
    for (const auto& [name, positions] : fold_names(mend.tensors)) names.push_back(name);
    for (const std::string& name : mend.dropped) names.push_back(name + " dropped");
    names.insert(names.end(), mend.settings.begin(), mend.settings.end());
    names.insert(names.end(), mend.files.begin(), mend.files.end());
    const size_t shown = all ? names.size() : std::min(names.size(), kFew);
    print_stdout("changed by {}: {}{}\n", mend.mend,
                 fmt::join(names.begin(), names.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
                 and_more(names.size(), " and {} more", shown));
  }
}

Json mends_to_json(const std::vector<ProvenMend>& mends) {
  Json list = Json::array();
  for (const ProvenMend& m : mends) {
    list.push_back({{"mend", m.mend},
                    {"tensors", m.tensors},
                    {"dropped", m.dropped},
                    {"settings", m.settings},
                    {"files", m.files}});
  }
  return list;
}

}  // namespace twofour
