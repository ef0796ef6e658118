#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "formats/error.h"
#include "tools/cli/arguments.h"
#include "tools/cli/command.h"
#include "tools/cli/program.h"
#include "tools/cli/suggest.h"

namespace twofour {
namespace {

constexpr size_t kWidth = 100, kColumn = 28;

/// A line of text from a column on, wrapped; later lines keep its indentation.
std::string wrapped_line(const std::string& line, size_t column) {
  const size_t indent = std::min(line.find_first_not_of(' '), line.size());
  // In a list ("  name  text") the text has a column of its own.
  const size_t gap = indent > 0 ? line.find("  ", indent) : line.npos;
  const size_t hang = gap == line.npos ? indent : std::min(line.find_first_not_of(' ', gap), line.size());
  std::string out(indent, ' ');
  size_t used = column + indent;
  for (size_t at = indent; at < line.size();) {
    const size_t end = std::min(line.find(' ', at), line.size());
    if (at > indent && used + 1 + (end - at) > kWidth) {
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

/// The same of several lines.
std::string wrapped(const std::string& text, size_t column = 0) {
  std::string out;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    if (at > 0) out += "\n" + (end > at ? std::string(column, ' ') : "");
    out += wrapped_line(text.substr(at, end - at), column);
    at = end + 1;
  }
  return out;
}

/// "{a,b,c}" from `column` on, continued on further lines where it is too long for one.
std::string choices_text(const std::vector<std::string>& choices, size_t column) {
  std::string text = "{";
  size_t used = column + 1;
  for (const std::string& choice : choices) {
    if (used + choice.size() + 1 > kWidth && used > column + 1) {
      text += "\n" + std::string(column + 1, ' ');
      used = column + 1;
    }
    text += choice + (&choice == &choices.back() ? "}" : ",");
    used += choice.size() + 1;
  }
  return text;
}

std::string argument_lines(const ArgumentEntry& entry) {
  std::string head = fmt::format("  {}", fmt::join(entry.names, ","));
  if (!entry.value.empty() && !entry.names.empty()) head += ' ';
  head += entry.choices.empty() ? entry.value : choices_text(entry.choices, head.size());
  const std::string text = entry.description + limits_text(entry);
  if (head.size() + 2 > kColumn) {
    head += "\n" + std::string(kColumn, ' ');
  } else {
    head.resize(kColumn, ' ');
  }
  return head + wrapped(text, kColumn) + "\n";
}

std::string argument_lines(const char* title, const std::vector<ArgumentEntry>& entries, bool common) {
  std::string text;
  for (const ArgumentEntry& entry : entries) {
    if (entry.common == common) text += argument_lines(entry);
  }
  return text.empty() ? "" : fmt::format("\n{}:\n{}", title, text);
}

}  // namespace

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

std::string help_text(const CommandEntry& root, const std::string& command) {
  const CommandEntry* entry = &root;
  std::vector<std::string> names;
  for (const CommandEntry& c : root.commands) {
    names.push_back(c.name);
    if (c.name == command) entry = &c;
  }
  if (entry == &root && !command.empty())
    throw Error(fmt::format("unknown command '{}'{}", command, did_you_mean(command, names)));
  std::string text = fmt::format("{}\nUsage: {}{}{} {}\n", wrapped(entry->summary), root.name,
                                 command.empty() ? "" : " ", command, usage_text(*entry));
  text += argument_lines("Arguments", entry->positionals, false);
  text += argument_lines("Options", entry->options, false);
  text += argument_lines("Common", entry->options, true);
  if (!entry->commands.empty()) text += "\nCommands:\n";
  for (const CommandEntry& c : entry->commands)
    text += fmt::format("  {:<26}{}\n", c.name, wrapped(c.summary, kColumn));
  return entry->footer.empty() ? text : text + "\n" + wrapped(entry->footer) + "\n";
}

std::function<int()> setup_help(Arguments& args, const Common& common) {
  struct HelpArguments {
    std::string command;
    bool markdown = false;
  };
  auto o = std::make_shared<HelpArguments>();
  args.option("COMMAND", o->command, "Command to explain; without one, all are listed").value_name("COMMAND");
  args.flag("--markdown", o->markdown, "Print the help of all commands as Markdown").excludes("COMMAND");
  return [o, &args, &common] {
    const CommandEntry root = args.root().entry();
    const std::string text = o->markdown ? markdown_text(root) : help_text(root, o->command);
    if (common.json) {
      print_json({{"command", o->command}, {"text", text}});
    } else {
      write_stdout(text);
    }
    return kDone;
  };
}

}  // namespace twofour
