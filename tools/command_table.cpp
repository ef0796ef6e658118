#include "tools/command_table.h"

#include <algorithm>
#include <iterator>

namespace twofour {
namespace {

/// "v7", "g8" of "TEXT:{v7,g8}", which is how the parser tells of the words that it takes.
std::vector<std::string> choices_of(const std::string& type) {
  std::vector<std::string> choices;
  const size_t open = type.find('{'), close = type.rfind('}');
  if (open == type.npos || close == type.npos) return choices;
  for (size_t at = open + 1; at < close;) {
    const size_t end = std::min(type.find(',', at), close);
    choices.push_back(type.substr(at, end - at));
    at = end + 1;
  }
  return choices;
}

OptionEntry option_entry(const CLI::Option& option) {
  OptionEntry entry;
  for (const std::string& name : option.get_snames()) entry.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) entry.names.push_back("--" + name);
  entry.description = option.get_description();
  entry.required = option.get_required();
  if (option.get_items_expected_max() == 0) return entry;
  const std::string type = option.get_type_name();
  entry.choices = choices_of(type);
  entry.value = option.get_positional() ? option.get_name(true) : type.substr(0, type.find_first_of(":{ "));
  entry.path = entry.choices.empty() && (type == "TEXT" || type == "FILE" || type == "PATH");
  entry.repeated = option.get_items_expected_max() > 1;
  return entry;
}

CommandEntry command_entry(const CLI::App& app) {
  CommandEntry entry{app.get_name(), app.get_description(), app.get_footer(), {}, {}, {}};
  for (const CLI::Option* option : app.get_options()) {
    OptionEntry o = option_entry(*option);
    (o.names.empty() ? entry.positionals : entry.options).push_back(std::move(o));
  }
  for (const CLI::App* sub : app.get_subcommands([](const CLI::App*) { return true; })) {
    CommandEntry below = command_entry(*sub);
    if (!below.name.empty()) {
      entry.commands.push_back(std::move(below));
      continue;
    }
    // A group of options is a nameless command to the parser; its options are those of the command above.
    std::move(below.options.begin(), below.options.end(), std::back_inserter(entry.options));
    std::move(below.positionals.begin(), below.positionals.end(), std::back_inserter(entry.positionals));
  }
  return entry;
}

}  // namespace

CommandEntry command_table(const CLI::App& root) { return command_entry(root); }

}  // namespace twofour
