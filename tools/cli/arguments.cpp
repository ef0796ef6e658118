#include "tools/cli/arguments.h"

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include <algorithm>
#include <optional>
#include <stdexcept>
#include <utility>

#include "formats/error.h"
#include "lib/base/findings/given_urls.h"
#include "lib/base/findings/problems.h"
#include "tools/cli/suggest.h"

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

template <class T>
std::string range_problem(const std::string& text, T least, T most, const std::string& expected) {
  T value{};
  if (CLI::detail::lexical_cast(text, value) && value >= least && value <= most) return "";
  return fmt::format("expected {}, found '{}'", expected, text);
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

Argument::Argument(CLI::Option* option, ArgumentEntry entry) : option_(option), entry_(std::move(entry)) {}

std::string Argument::name() const { return option_->get_name(); }

bool Argument::is_given() const { return option_->count() > 0; }

Argument& Argument::required(bool is_required) {
  option_->required(is_required);
  entry_.required = is_required;
  return *this;
}

namespace {

/// True if `text` is `word`, or has a number of up to three digits in place of N if `word` ends with ":N".
bool is_word(const std::string& word, const std::string& text) {
  if (!word.ends_with(":N")) return text == word;
  const size_t at = word.size() - 1;
  return text.size() > at && text.size() <= at + 3 && text.starts_with(word.substr(0, at)) &&
         std::all_of(text.begin() + static_cast<std::ptrdiff_t>(at), text.end(),
                     [](char c) { return c >= '0' && c <= '9'; });
}

}  // namespace

Argument& Argument::one_of(std::vector<std::string> words, const std::vector<std::string>& unlisted) {
  entry_.choices = words;
  entry_.path = false;
  return check([words, unlisted](const std::string& text) -> std::string {
    for (const auto& list : {words, unlisted}) {
      if (std::any_of(list.begin(), list.end(), [&](const std::string& w) { return is_word(w, text); }))
        return "";
    }
    return fmt::format("expected {}, found '{}'{}", fmt::join(words, ", "), text, did_you_mean(text, words));
  });
}

Argument& Argument::range(int least, int most) {
  entry_.range = fmt::format("{} to {}", least, most);
  return check([least, most, expected = "a whole number from " + entry_.range](const std::string& text) {
    return range_problem(text, least, most, expected);
  });
}

Argument& Argument::range(double least, double most) {
  entry_.range = fmt::format("{} to {}", least, most);
  return check([least, most, expected = "a number from " + entry_.range](const std::string& text) {
    return range_problem(text, least, most, expected);
  });
}

Argument& Argument::check(std::function<std::string(const std::string&)> problem) {
  option_->check(std::move(problem));
  return *this;
}

Argument& Argument::excludes(const std::string& name) {
  excluded_.push_back(name);
  return *this;
}

Argument& Argument::value_name(const std::string& name) {
  entry_.value = name;
  entry_.path = name == "FILE" || name == "DIRECTORY" || name == "PATH";
  return *this;
}

Argument& Argument::default_text(const std::string& text) {
  entry_.default_text = text;
  return *this;
}

Argument& Argument::separated_by(char separator) {
  option_->delimiter(separator);
  return *this;
}

Argument& Argument::as_given() {
  option_->transform(word_as_given);
  return *this;
}

Argument& Argument::common() {
  entry_.common = true;
  return *this;
}

Arguments::Arguments(const std::string& program, const std::string& summary)
    : state_(std::make_unique<State>()) {
  state_->owned = std::make_unique<CLI::App>(summary, program);
  state_->app = state_->owned.get();
  state_->app->require_subcommand(1);
  state_->entry = {program, summary, "", {}, {entry_of("-h,--help", "Show this help")}, {}};
  state_->app->set_version_flag("-V,--version", std::string());
  state_->entry.options.push_back(
      entry_of("-V,--version", "Show the version, the compiler, the processor, CUDA and libraries"));
}

Arguments::Arguments(Arguments& parent, const std::string& name, const std::string& summary)
    : state_(std::make_unique<State>()) {
  state_->app = parent.state_->app->add_subcommand(name, summary);
  state_->parent = &parent;
  state_->entry = {name, summary, "", {}, {entry_of("-h,--help", "Show this help")}, {}};
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
/// with an empty value would do less than the user asked for.
void Arguments::check_empty_values() const {
  for (const auto& argument : state_->arguments) {
    for (const std::string& value : argument->option_->results()) {
      if (value.empty())
        throw Error(fmt::format("{}: expected a value, found an empty one", argument->name()));
    }
  }
}

Arguments::Request Arguments::parse(const std::vector<std::string>& words) {
  const bool is_named = words.size() > 1 && !words[1].starts_with('-');
  if (is_named) {
    std::vector<std::string> names;
    for (const auto& command : state_->commands) names.push_back(command->name());
    if (std::find(names.begin(), names.end(), words[1]) == names.end()) {
      throw ErrorLines({fmt::format("unknown command '{}'{}", words[1], did_you_mean(words[1], names)),
                        fmt::format("See {} --help.", name())});
    }
  }
  define(is_named ? words[1] : "");
  try {
    std::vector<const char*> argv;
    for (const std::string& word : words) argv.push_back(word.c_str());
    state_->app->parse(static_cast<int>(argv.size()), argv.data());
  } catch (const CLI::CallForVersion&) {
    return Request::kVersion;
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
