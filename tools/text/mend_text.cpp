#include "tools/text/mend_text.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "lib/base/findings/and_more.h"
#include "lib/base/findings/finding.h"
#include "lib/lint/lint.h"
#include "tools/console/print.h"

namespace twofour {

Json mend_json(const MendRecord& m) {
  Json json = {{"mend", m.mend},
               {"rules", std::vector<std::string>(m.rules.begin(), m.rules.end())},
               {"bytes", m.bytes},
               {"tensors", Json::array()},
               {"dropped", std::vector<std::string>(m.dropped.begin(), m.dropped.end())},
               {"files", std::vector<std::string>(m.files.begin(), m.files.end())},
               {"settings", Json::array()}};
  for (const auto& [name, values] : m.tensors) json["tensors"].push_back(name);
  json["from_donor"] = m.from_donor.size();
  for (const MendRecord::Setting& s : m.settings)
    json["settings"].push_back({{"file", s.file}, {"key", s.key}});
  json["prefix"] = m.prefix;
  json["loss"] = Json::object();
  for (const auto& [module, loss] : m.loss) json["loss"][module] = loss;
  return json;
}

namespace {

/// A JSON value in a few words.
std::string shown(const Json& value) {
  constexpr size_t kMost = 60;
  if (value.is_null()) return "absent";
  const std::string text = json_line(value);
  return text.size() <= kMost ? text
         : value.is_object()  ? "another object"
         : value.is_array()   ? "another list"
                              : text;
}

/// Adds the differences of two values of a setting: "ignore: without "lm_head"".
void add_changes(const std::string& key, const Json& before, const Json& after,
                 std::vector<std::string>& to) {
  if (before == after) return;
  const auto within = [&](const std::string& name) { return key.empty() ? name : key + "." + name; };
  if (before.is_object() && after.is_object()) {
    for (const auto& [name, value] : before.items())
      add_changes(within(name), value, after.contains(name) ? after[name] : Json(), to);
    for (const auto& [name, value] : after.items())
      if (!before.contains(name)) add_changes(within(name), Json(), value, to);
    return;
  }
  if (!before.is_array() || !after.is_array()) {
    to.push_back(fmt::format("{}: from {} to {}", key, shown(before), shown(after)));
    return;
  }
  const size_t known = to.size();
  const auto lacks = [](const Json& list, const Json& value) {
    return std::find(list.begin(), list.end(), value) == list.end();
  };
  for (const Json& value : before)
    if (lacks(after, value)) to.push_back(fmt::format("{}: without {}", key, shown(value)));
  for (const Json& value : after)
    if (lacks(before, value)) to.push_back(fmt::format("{}: with {}", key, shown(value)));
  if (to.size() == known) to.push_back(key + ": in another order");
}

/// The first of some changes in words.
std::string first_of(const std::vector<std::string>& changes) {
  constexpr size_t kFew = 3;
  const size_t count = std::min(changes.size(), kFew);
  return fmt::format("{}{}",
                     fmt::join(changes.begin(), changes.begin() + static_cast<std::ptrdiff_t>(count), ", "),
                     and_more(changes.size(), " and {} more", count));
}

/// Tells where the numbers of a mend come from: " (2 from the donor, 1 from neighbours)".
std::string origins_of(const MendRecord& m) {
  const size_t others = m.tensors.size() - m.from_donor.size();
  if (m.from_donor.empty() && m.origin.empty()) return "";
  if (m.from_donor.empty()) return fmt::format(" (from {})", m.origin);
  if (others == 0) return " (from the donor)";
  return fmt::format(" ({} from the donor, {} from {})", m.from_donor.size(), others, m.origin);
}

}  // namespace

std::string mend_text(const MendRecord& m) {
  std::string rules, what;
  const auto add = [&](const std::string& text) { what += (what.empty() ? "" : ", ") + text; };
  for (const LintRule& rule : lint_rules()) {
    if (m.rules.contains(rule.id)) rules += (rules.empty() ? "" : ", ") + std::string(rule.id);
  }
  std::vector<std::string> numbers;
  for (const auto& [name, values] : m.numbers)
    numbers.push_back(fmt::format("{}: from {} to {}", name, values.first, values.second));
  if (!m.tensors.empty())
    add(counted(m.tensors.size(), "tensor") + origins_of(m) +
        (numbers.empty() ? "" : ", " + first_of(numbers)));
  if (!m.dropped.empty()) add(counted(m.dropped.size(), "tensor") + " dropped");
  if (!m.prefix.empty()) add(m.prefix + " removed from names");
  for (const auto& s : m.settings) {
    std::vector<std::string> changes;
    add_changes("", s.before, s.after, changes);
    if (s.before.is_object() && s.after.is_object()) {
      add(fmt::format("{}: {}: {}", s.file, s.key, changes.empty() ? "written anew" : first_of(changes)));
    } else {
      add(fmt::format("{}: {}: from {} to {}", s.file, s.key, shown(s.before), shown(s.after)));
    }
  }
  if (m.settings.empty()) {
    for (const std::string& file : m.files) add(file);
  }
  double most = 0;
  for (const auto& [module, loss] : m.loss) most = std::max(most, loss);
  if (!m.loss.empty()) add(fmt::format("weights changed by at most {:.3g} in relative norm", most));
  return fmt::format("{} ({}): {}; {}\n", m.mend, rules, what, format_bytes(m.bytes));
}

}  // namespace twofour
