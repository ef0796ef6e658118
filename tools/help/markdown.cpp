#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <string>
#include <string_view>
#include <vector>

#include "tools/cli/arguments.h"
#include "tools/cli/program.h"

namespace twofour {
namespace {

using Entries = std::vector<ArgumentEntry>;

/// Escapes Markdown's markup characters in `text`.
std::string markdown(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '|' || c == '<' || c == '*' || c == '_' || c == '[') out += '\\';
    out += c;
  }
  return out;
}

/// The list item of an argument: "- `--jobs N`: Number of threads (1 to 4096)".
std::string markdown_item(const ArgumentEntry& entry) {
  const std::string value = value_text(entry);
  return fmt::format("- `{}{}{}`: {}\n", fmt::join(entry.names, ", "),
                     value.empty() || entry.names.empty() ? "" : " ", value,
                     markdown(entry.description + limits_text(entry)));
}

/// The anchor of a heading: "choosing-modules" for "Choosing modules".
std::string anchor(std::string title) {
  for (char& c : title) c = c == ' ' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  return title;
}

/// Converts lines "  name  text" to a Markdown list. If all lines are short, they become one line.
std::string markdown_list(const std::vector<std::string>& lines) {
  constexpr size_t kShort = 80;
  const bool is_short =
      std::all_of(lines.begin(), lines.end(), [](const std::string& line) { return line.size() < kShort; });
  std::string out;
  for (const std::string& line : lines) {
    const size_t begin = line.find_first_not_of(' '), gap = line.find("  ", begin);
    out += fmt::format("{}`{}`: {}{}", is_short ? "" : "- ", line.substr(begin, gap - begin),
                       markdown(line.substr(line.find_first_not_of(' ', gap))),
                       !is_short || &line == &lines.back() ? "\n" : "; ");
  }
  return out;
}

/// Converts a paragraph of a footer to Markdown. Sentences become one line, lists stay lists, and other
/// indented lines become code.
std::string markdown_paragraph(const std::string& paragraph) {
  enum class Kind { kSentence, kItem, kCode };
  const auto kind_of = [](const std::string& line) {
    if (!line.starts_with(' ')) return Kind::kSentence;
    return line.find("  ", line.find_first_not_of(' ')) == line.npos ? Kind::kCode : Kind::kItem;
  };
  const std::vector<std::string> lines = divided(paragraph, "\n");
  std::string out = "\n";
  for (size_t at = 0, end = 0; at < lines.size(); at = end) {
    const Kind kind = kind_of(lines[at]);
    while (end < lines.size() && kind_of(lines[end]) == kind) ++end;
    const std::vector<std::string> run(lines.begin() + static_cast<std::ptrdiff_t>(at),
                                       lines.begin() + static_cast<std::ptrdiff_t>(end));
    if (kind == Kind::kSentence) {
      out += markdown(fmt::format("{}\n", fmt::join(run, " ")));
    } else {
      out +=
          kind == Kind::kItem ? markdown_list(run) : fmt::format("```text\n{}\n```\n", fmt::join(run, "\n"));
    }
  }
  return out;
}

size_t count(const Entries& entries, const ArgumentEntry& entry) {
  return static_cast<size_t>(std::count(entries.begin(), entries.end(), entry));
}

/// The options that the page describes only once. These are the options of every command, which have no
/// group, and the options of a group that several commands have. If options of a group share a name but
/// differ, the page describes the variant that most commands have. Ties go to the first variant.
Entries shared_options(const std::vector<CommandEntry>& commands) {
  Entries all;
  for (const CommandEntry& c : commands) all.insert(all.end(), c.options.begin(), c.options.end());
  Entries shared;
  for (const ArgumentEntry& option : all) {
    const size_t own = count(all, option);
    const bool is_shared = !option.group.empty() || option.common ? own > 1 : own == commands.size();
    const bool is_first = std::none_of(all.begin(), all.end(), [&](const ArgumentEntry& other) {
      return other.names == option.names && other.group == option.group && count(all, other) > own;
    });
    const bool is_known = std::any_of(shared.begin(), shared.end(), [&](const ArgumentEntry& other) {
      return other.names == option.names && other.group == option.group;
    });
    if (is_shared && is_first && !is_known) shared.push_back(option);
  }
  return shared;
}

std::vector<std::string> titles_of(const Entries& shared) {
  std::vector<std::string> titles;
  for (const ArgumentEntry& option : shared) {
    if (!option.group.empty() && std::find(titles.begin(), titles.end(), option.group) == titles.end())
      titles.push_back(option.group);
  }
  return titles;
}

std::string items_of(const Entries& entries, const std::string& group) {
  std::string items;
  for (const ArgumentEntry& entry : entries) {
    if (entry.group == group) items += markdown_item(entry);
  }
  return items;
}

/// The Markdown items of a command: its own arguments, then the names of its shared options by group.
std::string items_of(const CommandEntry& command, const Entries& shared) {
  std::string items;
  for (const ArgumentEntry& entry : command.positionals) items += markdown_item(entry);
  for (const ArgumentEntry& entry : command.options) {
    if (count(shared, entry) == 0) items += markdown_item(entry);
  }
  for (const std::string& title : titles_of(shared)) {
    std::vector<std::string> names;
    for (const ArgumentEntry& entry : command.options) {
      if (entry.group == title && count(shared, entry) > 0)
        names.push_back(fmt::format("`{}`", entry.names.back()));
    }
    if (!names.empty())
      items += fmt::format("- [{}](#{}): {}\n", title, anchor(title), fmt::join(names, ", "));
  }
  return items;
}

constexpr std::string_view kExitCodes = "Exit codes: ";

/// The paragraphs of a command's footer, without the exit codes.
std::vector<std::string> notes_of(const CommandEntry& command) {
  std::vector<std::string> notes;
  for (const std::string& paragraph : divided(command.footer, "\n\n")) {
    if (!paragraph.empty() && !paragraph.starts_with(kExitCodes)) notes.push_back(paragraph);
  }
  return notes;
}

/// The paragraphs that the footers of several commands share.
std::vector<std::string> shared_notes(const std::vector<CommandEntry>& commands) {
  std::vector<std::string> all, shared;
  for (const CommandEntry& c : commands) {
    for (const std::string& note : notes_of(c)) {
      const bool is_known = std::find(shared.begin(), shared.end(), note) != shared.end();
      if (!is_known && std::find(all.begin(), all.end(), note) != all.end()) shared.push_back(note);
      all.push_back(note);
    }
  }
  return shared;
}

std::string command_section(const CommandEntry& root, const CommandEntry& command, const Entries& shared,
                            const std::vector<std::string>& configured) {
  std::string text = fmt::format("\n## {}\n{}.\n`{} {} {}`, for example `{}`\n\n{}", command.name,
                                 markdown(command.summary), root.name, command.name, usage_text(command),
                                 command.examples.front(), items_of(command, shared));
  for (const std::string& note : notes_of(command)) {
    if (std::find(configured.begin(), configured.end(), note) == configured.end())
      text += markdown_paragraph(note);
  }
  return text;
}

}  // namespace

std::string markdown_text(const CommandEntry& root) {
  std::string text = fmt::format(
      "# The command line\n\n`{0} help --markdown` prints this page, and a test compares them. `{0} COMMAND "
      "--help-all` shows all options of one command,\n`{0} man DIRECTORY` writes manual pages. "
      "[JSON.md](JSON.md) "
      "describes what `--json` prints.\n\n",
      root.name);
  std::vector<std::string> links;
  for (const CommandEntry& c : root.commands) links.push_back(fmt::format("[{0}](#{0})", c.name));
  text += fmt::format("Commands: {}.\n", fmt::join(links, ", "));
  const Entries shared = shared_options(root.commands);
  const std::vector<std::string> notes = shared_notes(root.commands);
  text += "\nEvery command has these options. Some have another `--device`.\n\n";
  text += items_of(shared, "");
  for (const std::string& paragraph : divided(root.footer, "\n\n")) text += markdown_paragraph(paragraph);
  text += "\n## Options of several commands\nThe lists of the commands name these options and link here.\n";
  for (const std::string& title : titles_of(shared))
    text += fmt::format("\n### {}\n{}", title, items_of(shared, title));
  for (const std::string& note : notes) text += markdown_paragraph(note);
  for (const CommandEntry& c : root.commands) text += command_section(root, c, shared, notes);
  return text;
}

}  // namespace twofour
