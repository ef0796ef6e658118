#include "tools/cli/arguments.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "formats/error.h"
#include "lib/base/findings/problems.h"
#include "lib/base/findings/suggest.h"

namespace twofour {
namespace {

template <class T>
std::string default_of(const T& value) {
  return fmt::format("{}", value);
}
template <class T>
std::string default_of(const std::optional<T>&) {
  return "";
}
std::string default_of(const std::vector<std::string>&) { return ""; }

template <class T>
constexpr const char* kValueName = "N";
template <>
constexpr const char* kValueName<std::string> = "TEXT";
template <>
constexpr const char* kValueName<std::vector<std::string>> = "TEXT";

std::vector<std::string> split_names(const std::string& names) {
  std::vector<std::string> all;
  for (size_t at = 0; at <= names.size();) {
    const size_t comma = std::min(names.find(',', at), names.size());
    all.push_back(names.substr(at, comma - at));
    at = comma + 1;
  }
  return all;
}

ArgumentEntry entry_of(const std::string& names, const std::string& description) {
  ArgumentEntry entry;
  entry.description = description;
  if (names.starts_with("-")) {
    entry.names = split_names(names);
  } else {
    entry.value = names;
  }
  return entry;
}

/// The text for an error of the parser. It is a plainer text of twofour's if there is one, otherwise the
/// parser's message. In these messages, ": " ends the argument's name.
std::string plain_message(const CLI::ParseError& error) {
  const std::string message = error.what();
  if (message == "A subcommand is required") return "expected a command, found none";
  if (dynamic_cast<const CLI::ExtrasError*>(&error) != nullptr)
    return fmt::format("expected no further argument, found {}", message.substr(message.rfind(": ") + 2));
  const std::string name = message.substr(0, message.find(": "));
  if (dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr) {
    if (message.ends_with(" missing")) return name + ": expected a value, found none";
    const size_t count = message.rfind(' ');
    if (message.find("At Most 1 ") != message.npos)
      return fmt::format("{}: expected once, found {} times", name, message.substr(count + 1));
  }
  return message;
}

std::vector<ArgumentEntry> help_entries() {
  std::vector<ArgumentEntry> entries{entry_of("-h,--help", "Show examples and the usual options"),
                                     entry_of("--help-all", "Show all options")};
  for (ArgumentEntry& entry : entries) entry.common = true;
  return entries;
}

}  // namespace

struct Arguments::State {
  std::unique_ptr<CLI::App> owned;  ///< only for the program itself
  CLI::App* app = nullptr;
  Arguments* parent = nullptr;
  std::vector<std::unique_ptr<Arguments>> commands;
  std::vector<std::unique_ptr<Argument>> arguments;
  std::vector<std::vector<std::string>> exactly_one;
  std::function<void(Arguments&)> define;  ///< empty after it was called
  CommandEntry entry;
  std::string group;  ///< the group of arguments that are being added
};

Arguments::Arguments(const std::string& program, const std::string& summary)
    : state_(std::make_unique<State>()) {
  state_->owned = std::make_unique<CLI::App>(summary, program);
  state_->app = state_->owned.get();
  state_->app->require_subcommand(1);
  state_->entry = {program, summary, "", {}, help_entries(), {}};
  state_->app->set_help_all_flag("--help-all");
  state_->app->set_version_flag("-V,--version", std::string());
  state_->entry.options.push_back(
      entry_of("-V,--version", "Show the version, the compiler, the processor, CUDA and libraries"));
}

Arguments::Arguments(Arguments& parent, const std::string& name, const std::string& summary)
    : state_(std::make_unique<State>()) {
  state_->app = parent.state_->app->add_subcommand(name, summary);
  state_->parent = &parent;
  state_->entry = {name, summary, "", {}, help_entries(), {}};
}

Arguments::~Arguments() = default;

Arguments& Arguments::command(const std::string& name, const std::string& summary) {
  return *state_->commands.emplace_back(new Arguments(*this, name, summary));
}

void Arguments::command(const std::string& name, const std::string& summary,
                        std::function<void(Arguments&)> define) {
  command(name, summary).state_->define = std::move(define);
}

/// Defines the arguments of the command with the name `only` or, if it is empty, of each command.
void Arguments::define(std::string_view only) const {
  for (const auto& command : state_->commands) {
    if (!only.empty() && command->name() != only) continue;
    if (const auto define = std::exchange(command->state_->define, nullptr)) define(*command);
  }
}

Argument& Arguments::add(CLI::Option* option, ArgumentEntry entry) {
  entry.group = state_->group;
  return *state_->arguments.emplace_back(new Argument(option, std::move(entry)));
}

template <class T>
Argument& Arguments::option(const std::string& names, T& to, const std::string& description) {
  CLI::Option* added = state_->app->add_option(names, to, description);
  ArgumentEntry entry = entry_of(names, description);
  if (entry.names.empty()) {
    // A plain text value is a file or directory in most commands.
    entry.path = std::is_same_v<T, std::string>;
  } else {
    entry.value = kValueName<T>;
  }
  entry.default_text = default_of(to);
  if constexpr (std::is_same_v<T, std::vector<std::string>>) {
    if (names.starts_with("-")) {
      added->take_all()->allow_extra_args(false);
    } else {
      added->expected(-1);  // one or more
    }
    entry.repeated = true;
  }
  return add(added, std::move(entry));
}

template Argument& Arguments::option(const std::string&, std::string&, const std::string&);
template Argument& Arguments::option(const std::string&, int&, const std::string&);
template Argument& Arguments::option(const std::string&, int64_t&, const std::string&);
template Argument& Arguments::option(const std::string&, uint64_t&, const std::string&);
template Argument& Arguments::option(const std::string&, float&, const std::string&);
template Argument& Arguments::option(const std::string&, double&, const std::string&);
template Argument& Arguments::option(const std::string&, std::optional<int64_t>&, const std::string&);
template Argument& Arguments::option(const std::string&, std::optional<uint64_t>&, const std::string&);
template Argument& Arguments::option(const std::string&, std::optional<float>&, const std::string&);
template Argument& Arguments::option(const std::string&, std::optional<double>&, const std::string&);
template Argument& Arguments::option(const std::string&, std::vector<std::string>&, const std::string&);

Argument& Arguments::flag(const std::string& names, bool& to, const std::string& description) {
  return add(state_->app->add_flag(names, to, description), entry_of(names, description));
}

Argument& Arguments::at(const std::string& name) {
  for (const auto& argument : state_->arguments) {
    if (argument->name() == name) return *argument;
  }
  throw std::logic_error(name + ": no such argument");
}

void Arguments::replaces_all(const std::string& name, const std::vector<std::string>& besides) {
  for (const auto& argument : state_->arguments) {
    const std::string other = argument->name();
    argument->required(false);
    if (other != name && std::find(besides.begin(), besides.end(), other) == besides.end())
      argument->excludes(name);
  }
}

void Arguments::exactly_one_of(const std::vector<std::string>& names) {
  state_->exactly_one.push_back(names);
}

ArgumentGroup::ArgumentGroup(Arguments& args, const char* title)
    : args_(args), before_(std::exchange(args.state_->group, title)) {}

ArgumentGroup::~ArgumentGroup() { args_.state_->group = before_; }

void Arguments::footer(const std::string& text) {
  std::string& footer = state_->entry.footer;
  footer += (footer.empty() ? "" : "\n\n") + text;
}

void Arguments::describe(std::string group, std::vector<std::string> examples,
                         std::vector<std::string> usual) {
  state_->entry.group = std::move(group);
  state_->entry.examples = std::move(examples);
  state_->entry.usual = std::move(usual);
}

const Arguments* Arguments::chosen() const {
  for (const auto& command : state_->commands) {
    if (command->state_->app->parsed()) return command.get();
  }
  return nullptr;
}

const std::string& Arguments::name() const { return state_->entry.name; }

const Arguments& Arguments::root() const { return state_->parent ? state_->parent->root() : *this; }

CommandEntry Arguments::entry() const {
  CommandEntry entry = state_->entry;
  for (const auto& argument : state_->arguments) {
    const ArgumentEntry& e = argument->entry_;
    (e.names.empty() ? entry.positionals : entry.options).push_back(e);
  }
  define();
  for (const auto& command : state_->commands) entry.commands.push_back(command->entry());
  return entry;
}

/// The error for a command line that could not be parsed, with a line that names the help to read.
ErrorLines Arguments::usage_error(const std::string& message) const {
  const Arguments* command = chosen();
  const Arguments& at = command != nullptr ? *command : *this;
  const std::string help =
      fmt::format("See {} {}--help.", name(), command != nullptr ? command->name() + " " : "");
  // An unknown option may explain why a required option is missing, so it is reported first.
  const std::vector<std::string> rest = at.state_->app->remaining(true);
  for (const std::string& word : rest) {
    if (!word.starts_with("-")) continue;
    const std::string typed = word.substr(0, word.find('='));
    std::vector<std::string> names;
    for (const ArgumentEntry& option : at.entry().options) {
      for (const std::string& known : option.names) {
        if (known.starts_with("--")) names.push_back(known);
      }
    }
    return ErrorLines({fmt::format("unknown option {}{}", typed, did_you_mean(typed, names)), help});
  }
  return ErrorLines({message, help});
}

/// The error in the combination of arguments. Empty if the combination is valid.
std::string Arguments::problem_together() const {
  const auto excludes = [](const Argument& a, const Argument& b) {
    return std::find(a.excluded_.begin(), a.excluded_.end(), b.name()) != a.excluded_.end();
  };
  for (const auto& a : state_->arguments) {
    for (const auto& b : state_->arguments) {
      if (a->is_given() && b->is_given() && (excludes(*a, *b) || excludes(*b, *a)))
        return fmt::format("{} excludes {}", a->name(), b->name());
    }
  }
  for (const std::vector<std::string>& names : state_->exactly_one) {
    std::vector<std::string> given;
    for (const auto& argument : state_->arguments) {
      const bool listed = std::find(names.begin(), names.end(), argument->name()) != names.end();
      if (listed && argument->is_given()) given.push_back(argument->name());
    }
    if (given.size() != 1) {
      return fmt::format("expected one of {}, found {}", fmt::join(names, ", "),
                         given.empty() ? "none" : fmt::format("{}", fmt::join(given, " and ")));
    }
  }
  return "";
}

/// Throws Error for an option with an empty value, for example from a shell variable that is not set. A run
/// with an empty value would do less than the user requested.
void Arguments::check_empty_values() const {
  for (const auto& argument : state_->arguments) {
    for (const std::string& value : argument->option_->results()) {
      if (value.empty())
        throw Error(fmt::format("{}: expected a value, found an empty one", argument->name()));
    }
  }
}

/// The position of the command's name in a command line. It is the first word that is neither an option nor
/// the value of one. words.size() if there is none, or if an option before it asks for the version.
size_t Arguments::find_command(const std::vector<std::string>& words) const {
  size_t at = 1;
  if (at < words.size() && !words[at].starts_with('-')) return at;
  std::set<std::string> with_value;
  for (const CommandEntry& command : entry().commands) {
    for (const ArgumentEntry& option : command.options) {
      if (!option.value.empty()) with_value.insert(option.names.begin(), option.names.end());
    }
  }
  while (at < words.size() && words[at].starts_with('-')) {
    if (words[at] == "-V" || words[at] == "--version") return words.size();
    at += with_value.contains(words[at]) ? 2 : 1;
  }
  return std::min(at, words.size());
}

/// True if all words are options of commands or their values, and none is an option of the program.
bool Arguments::is_of_commands(const std::vector<std::string>& words) const {
  std::set<std::string> known;
  for (const CommandEntry& command : entry().commands) {
    for (const ArgumentEntry& option : command.options)
      known.insert(option.names.begin(), option.names.end());
  }
  for (const ArgumentEntry& option : state_->entry.options) {
    for (const std::string& option_name : option.names) known.erase(option_name);
  }
  return std::all_of(words.begin() + 1, words.end(), [&](const std::string& word) {
    return !word.starts_with('-') || known.contains(word.substr(0, word.find('=')));
  });
}

Arguments::Request Arguments::parse(const std::vector<std::string>& given) {
  std::vector<std::string> words = given;
  const size_t at = find_command(words);
  const bool is_named = at < words.size();
  if (is_named) {
    std::vector<std::string> names;
    for (const auto& command : state_->commands) names.push_back(command->name());
    if (std::find(names.begin(), names.end(), words[at]) == names.end()) {
      throw ErrorLines({fmt::format("unknown command '{}'{}", words[at], did_you_mean(words[at], names)),
                        fmt::format("See {} --help.", name())});
    }
    const auto place = words.begin() + static_cast<std::ptrdiff_t>(at);
    std::rotate(words.begin() + 1, place, place + 1);
  }
  define(is_named ? words[1] : "");
  if (!is_named && words.size() > 1 && is_of_commands(words))
    throw ErrorLines({"expected a command, found none", fmt::format("See {} --help.", name())});
  try {
    std::vector<const char*> argv;
    for (const std::string& word : words) argv.push_back(word.c_str());
    state_->app->parse(static_cast<int>(argv.size()), argv.data());
  } catch (const CLI::CallForVersion&) {
    return Request::kVersion;
  } catch (const CLI::CallForAllHelp&) {
    return Request::kHelpAll;
  } catch (const CLI::Success&) {
    return Request::kHelp;
  } catch (const CLI::ParseError& error) {
    throw usage_error(plain_message(error));
  }
  if (const std::string problem = chosen()->problem_together(); !problem.empty()) throw usage_error(problem);
  chosen()->check_empty_values();
  return Request::kRun;
}

}  // namespace twofour
