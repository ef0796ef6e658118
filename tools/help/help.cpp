#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "formats/error.h"
#include "lib/base/findings/suggest.h"
#include "tools/cli/arguments.h"
#include "tools/cli/command.h"
#include "tools/cli/program.h"
#include "tools/console/progress_line.h"

namespace twofour {
namespace {

/// Wraps texts to a width.
class Wrapping {
 public:
  explicit Wrapping(size_t width) : width_(width), column_(width < 70 ? 6 : 28) {}

  /// Wraps each line of a text that begins at `column`.
  std::string text(const std::string& text, size_t column = 0) const {
    std::string out;
    const std::vector<std::string> lines = divided(text, "\n");
    for (size_t i = 0; i < lines.size(); ++i) {
      if (i > 0) out += "\n" + (lines[i].empty() ? "" : std::string(column, ' '));
      out += wrapped(lines[i], column);
    }
    return out;
  }
  /// A name or option with its description in a column of its own. `head` begins with two blanks.
  std::string item(std::string head, const std::string& text) const {
    if (head.size() + 2 > column_) {
      head += "\n" + std::string(column_, ' ');
    } else {
      head.resize(column_, ' ');
    }
    return head + this->text(text, column_) + "\n";
  }
  /// A command line, which a shell continues at a backslash if it has several lines.
  std::string command_line(const std::string& words) const {
    std::string out = " ";
    size_t used = 1;
    for (const std::string& word : divided(words, " ")) {
      if (used + word.size() + 3 > width_ && used > 6) {
        out += " \\\n     ";
        used = 5;
      }
      out += " " + word;
      used += word.size() + 1;
    }
    return out;
  }
  std::string item(const ArgumentEntry& entry, const std::string& description) const {
    std::string head = fmt::format("  {}", fmt::join(entry.names, ","));
    if (!entry.value.empty() && !entry.names.empty()) head += ' ';
    head += entry.choices.empty() ? entry.value : choices(entry.choices, head.size());
    return item(std::move(head), description + limits_text(entry));
  }

 private:
  /// Wraps a line of text that begins at `column`. Further lines get the same indentation.
  std::string wrapped(const std::string& line, size_t column) const {
    const size_t indent = std::min(line.find_first_not_of(' '), line.size());
    // In a list ("  name  text") the text has its own column.
    const size_t gap = indent > 0 ? line.find("  ", indent) : line.npos;
    size_t hang = gap == line.npos ? indent : std::min(line.find_first_not_of(' ', gap), line.size());
    if (column + hang > width_ / 2) hang = indent;
    std::string out(indent, ' ');
    size_t used = column + indent;
    for (size_t at = indent; at < line.size();) {
      const size_t end = std::min(line.find(' ', at), line.size());
      if (at > indent && used + 1 + (end - at) > width_) {
        out += "\n" + std::string(column + hang, ' ');
        used = column + hang;
      } else if (at > indent) {
        out += ' ';
        ++used;
      }
      out += line.substr(at, end - at);
      used += end - at;
      at = end + 1;
    }
    return out;
  }
  /// The choices of an argument as "{a,b,c}", beginning at `column`. They continue on further lines if one
  /// line is too short.
  std::string choices(const std::vector<std::string>& all, size_t column) const {
    std::string text = "{";
    if (column > width_ / 2) column = 3;
    size_t used = column + 1;
    for (const std::string& choice : all) {
      if (used + choice.size() + 1 > width_ && used > column + 1) {
        text += "\n" + std::string(column + 1, ' ');
        used = column + 1;
      }
      text += choice + (&choice == &all.back() ? "}" : ",");
      used += choice.size() + 1;
    }
    return text;
  }

  size_t width_, column_;
};

/// The first sentence of a description.
std::string first_sentence(const std::string& text) {
  const size_t end = text.find(". ");
  return end == text.npos ? text : text.substr(0, end);
}

bool is_usual(const CommandEntry& command, const ArgumentEntry& option) {
  const std::string& name = option.names.back();
  if (command.usual.empty()) return !option.common;
  return std::find(command.usual.begin(), command.usual.end(), name) != command.usual.end();
}

/// The usual options, in the order of the short help.
std::vector<ArgumentEntry> usual_options(const CommandEntry& command) {
  std::vector<ArgumentEntry> usual;
  for (const ArgumentEntry& option : command.options) {
    if (is_usual(command, option)) usual.push_back(option);
  }
  const auto place = [&](const ArgumentEntry& option) {
    return std::find(command.usual.begin(), command.usual.end(), option.names.back());
  };
  if (!command.usual.empty())
    std::stable_sort(usual.begin(), usual.end(), [&](auto& a, auto& b) { return place(a) < place(b); });
  return usual;
}

/// The titles of options in the order of their first option; the usual options come first, those of every
/// command last.
std::vector<std::string> titles_of(const CommandEntry& command) {
  std::vector<std::string> titles;
  for (const ArgumentEntry& option : command.options) {
    const bool is_new = std::find(titles.begin(), titles.end(), option.group) == titles.end();
    if (!option.common && is_new && !is_usual(command, option)) titles.push_back(option.group);
  }
  std::stable_partition(titles.begin(), titles.end(), [](auto& title) { return title.empty(); });
  return titles;
}

std::string title_text(const std::string& group) { return group.empty() ? "More" : group; }

std::string examples_text(const Wrapping& wrap, const CommandEntry& command) {
  if (command.examples.empty()) return "";
  std::string text = command.examples.size() > 1 ? "\nExamples:\n" : "\nExample:\n";
  for (const std::string& example : command.examples) text += wrap.command_line(example) + "\n";
  return text;
}

std::string arguments_text(const Wrapping& wrap, const CommandEntry& command) {
  std::string text;
  for (const ArgumentEntry& entry : command.positionals) text += wrap.item(entry, entry.description);
  return text.empty() ? "" : "\nArguments:\n" + text;
}

/// The paragraphs of a footer that begin with `word`: lists of values ("--to writes:"), exit codes.
std::string paragraphs_text(const Wrapping& wrap, const CommandEntry& command, std::string_view word) {
  std::string text;
  for (const std::string& paragraph : divided(command.footer, "\n\n")) {
    if (paragraph.starts_with(word)) text += "\n" + wrap.text(paragraph) + "\n";
  }
  return text;
}

std::string short_help(const Wrapping& wrap, const CommandEntry& root, const CommandEntry& command) {
  std::string text = examples_text(wrap, command) + arguments_text(wrap, command), options;
  for (const ArgumentEntry& option : usual_options(command))
    options += wrap.item(option, first_sentence(option.description));
  if (!options.empty()) text += "\nOptions:\n" + options;
  // A command of few options is explained as a whole.
  const bool is_brief = command.usual.empty();
  if (!is_brief) text += paragraphs_text(wrap, command, "--");
  const auto names = [&](auto&& is_wanted) {
    std::string list;
    for (const ArgumentEntry& option : command.options) {
      if (!is_usual(command, option) && is_wanted(option))
        list += fmt::format("{}{}", list.empty() ? "" : ", ", fmt::join(option.names, ","));
    }
    return list;
  };
  std::string more;
  for (const std::string& title : titles_of(command)) {
    const std::string list = names([&](const ArgumentEntry& o) { return !o.common && o.group == title; });
    more += wrap.item("  " + title_text(title), list);
  }
  more += wrap.item("  Every command", names([](const ArgumentEntry& o) { return o.common; }));
  return text + "\n" +
         wrap.text(fmt::format("More options, which {} {} --help-all explains:", root.name, command.name)) +
         "\n" + more + paragraphs_text(wrap, command, is_brief ? "" : "Exit codes: ");
}

std::string long_help(const Wrapping& wrap, const CommandEntry& command) {
  std::string text = examples_text(wrap, command) + arguments_text(wrap, command), options, common;
  for (const ArgumentEntry& option : usual_options(command)) options += wrap.item(option, option.description);
  if (!options.empty()) text += "\nOptions:\n" + options;
  for (const std::string& title : titles_of(command)) {
    options.clear();
    for (const ArgumentEntry& option : command.options) {
      if (!option.common && option.group == title && !is_usual(command, option))
        options += wrap.item(option, option.description);
    }
    text += fmt::format("\n{}:\n{}", title_text(title), options);
  }
  for (const ArgumentEntry& option : command.options) {
    if (option.common) common += wrap.item(option, option.description);
  }
  text += "\nEvery command:\n" + common;
  return command.footer.empty() ? text : text + "\n" + wrap.text(command.footer) + "\n";
}

/// The commands by groups, each in the order of use.
std::string commands_text(const Wrapping& wrap, const CommandEntry& root) {
  std::vector<std::string> groups;
  for (const CommandEntry& c : root.commands) {
    if (std::find(groups.begin(), groups.end(), c.group) == groups.end()) groups.push_back(c.group);
  }
  std::string text;
  for (const std::string& group : groups) {
    text += "\n" + wrap.text(fmt::format("{}:", group.empty() ? "Commands" : group)) + "\n";
    for (const CommandEntry& c : root.commands) {
      if (c.group == group) text += wrap.item("  " + c.name, c.summary);
    }
  }
  return text;
}

std::string program_help(const Wrapping& wrap, const CommandEntry& root) {
  std::string options;
  for (const ArgumentEntry& option : root.options) options += wrap.item(option, option.description);
  return examples_text(wrap, root) + commands_text(wrap, root) + "\nOptions:\n" + options +
         (root.footer.empty() ? "" : "\n" + wrap.text(root.footer) + "\n");
}

}  // namespace

size_t help_width(std::FILE* stream) {
  constexpr size_t kWidest = 100, kNarrowest = 30;
  const size_t columns = terminal_columns(stream);
  return columns == 0 ? kWidest : std::clamp(columns, kNarrowest, kWidest);
}

std::vector<std::string> divided(const std::string& text, const std::string& by) {
  std::vector<std::string> parts;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(by, at), text.size());
    parts.push_back(text.substr(at, end - at));
    at = end + by.size();
  }
  return parts;
}

std::string value_text(const ArgumentEntry& entry) {
  return entry.choices.empty() ? entry.value : fmt::format("{{{}}}", fmt::join(entry.choices, ","));
}

std::string limits_text(const ArgumentEntry& entry) {
  std::vector<std::string> parts;
  if (entry.required && !entry.names.empty()) parts.push_back("required");
  if (!entry.range.empty()) parts.push_back(entry.range);
  if (!entry.required && !entry.default_text.empty()) parts.push_back("default: " + entry.default_text);
  if (entry.repeated) parts.push_back("may be given again");
  return parts.empty() ? "" : fmt::format(" ({})", fmt::join(parts, "; "));
}

std::string usage_text(const CommandEntry& entry) {
  std::string text = entry.commands.empty() ? "[OPTIONS]" : "COMMAND [OPTIONS]";
  for (const ArgumentEntry& positional : entry.positionals)
    text += fmt::format(fmt::runtime(positional.required ? " {}" : " [{}]"), positional.value);
  return text;
}

std::string help_text(const CommandEntry& root, const std::string& command, bool all, size_t width) {
  const CommandEntry* entry = &root;
  std::vector<std::string> names;
  for (const CommandEntry& c : root.commands) {
    names.push_back(c.name);
    if (c.name == command) entry = &c;
  }
  if (entry == &root && !command.empty())
    throw Error(fmt::format("unknown command '{}'{}", command, did_you_mean(command, names)));
  const Wrapping wrap(width);
  const std::string head = wrap.text(fmt::format("{}\n\nUsage: {}{}{} {}", entry->summary, root.name,
                                                 command.empty() ? "" : " ", command, usage_text(*entry))) +
                           "\n";
  if (entry == &root) return head + program_help(wrap, root);
  return head + (all ? long_help(wrap, *entry) : short_help(wrap, root, *entry));
}

std::function<int()> setup_help(Arguments& args, const Common& common) {
  struct HelpArguments {
    std::string command;
    bool markdown = false, all = false;
  };
  auto o = std::make_shared<HelpArguments>();
  args.option("COMMAND", o->command, "Command to explain; without one, all are listed").value_name("COMMAND");
  args.flag("--all", o->all, "Show all options of the command, as its --help-all");
  args.flag("--markdown", o->markdown, "Print the help of all commands as Markdown").excludes("COMMAND");
  return [o, &args, &common] {
    const CommandEntry root = args.root().entry();
    const std::string text =
        o->markdown ? markdown_text(root) : help_text(root, o->command, o->all, help_width(stdout));
    if (common.json) {
      print_json({{"command", o->command}, {"text", text}});
    } else {
      write_stdout(text);
    }
    return kDone;
  };
}

}  // namespace twofour
