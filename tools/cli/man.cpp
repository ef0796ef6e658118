#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>

#include "formats/error.h"
#include "lib/io/file.h"
#include "lib/findings/version.h"
#include "tools/command_table.h"

namespace twofour {
namespace {

/// `text` for roff: no character of it is markup.
std::string roff(std::string_view text) {
  std::string out;
  bool line_start = true;
  for (const char c : text) {
    if (line_start && (c == '.' || c == '\'')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";
    } else {
      out += c;
    }
    line_start = c == '\n';
  }
  return out;
}

std::string synopsis(const CommandEntry& c, const std::string& path) {
  std::string text = fmt::format(".B {}\n", roff(path));
  if (!c.commands.empty()) text += ".I COMMAND\n";
  for (const OptionEntry& p : c.positionals) {
    const std::string name = ".I " + roff(p.value) + "\n";
    text += p.required ? name : fmt::format(".RI [ {} ]\n", roff(p.value));
  }
  return text + ".RI [ OPTIONS ]\n";
}

std::string option_text(const OptionEntry& o) {
  std::string text = ".TP\n";
  const auto bold = [](const std::string& name) { return "\\fB" + roff(name) + "\\fR"; };
  for (size_t i = 0; i < o.names.size(); ++i) text += (i > 0 ? ", " : "") + bold(o.names[i]);
  if (!o.value.empty()) text += (o.names.empty() ? "\\fI" : " \\fI") + roff(o.value) + "\\fR";
  text += "\n" + roff(o.description);
  if (!o.choices.empty())
    text += fmt::format(". One of: {}", roff(fmt::format("{}", fmt::join(o.choices, ", "))));
  if (o.repeated) text += ". May be given again";
  return text + ".\n";
}

/// The lines of a footer as they stand.
std::string literal(const std::string& text) { return ".nf\n" + roff(text) + "\n.fi\n"; }

std::string page(const CommandEntry& c, const std::string& path, const CommandEntry& root) {
  std::string name = path;
  std::replace(name.begin(), name.end(), ' ', '-');
  std::string title = name;
  std::transform(title.begin(), title.end(), title.begin(), [](unsigned char l) { return std::toupper(l); });
  std::string text =
      fmt::format(".TH {} 1 \"\" \"twofour {}\" \"twofour manual\"\n.SH NAME\n{} \\- {}\n.SH SYNOPSIS\n",
                  roff(title), version(), roff(name), roff(c.summary));
  text += synopsis(c, path);
  if (!c.commands.empty()) {
    text += ".SH COMMANDS\n";
    for (const CommandEntry& sub : c.commands)
      text += fmt::format(".TP\n.B {}\n{}.\n", roff(sub.name), roff(sub.summary));
  }
  if (!c.positionals.empty()) text += ".SH ARGUMENTS\n";
  for (const OptionEntry& p : c.positionals) text += option_text(p);
  text += ".SH OPTIONS\n";
  for (const OptionEntry& o : c.options) text += option_text(o);
  for (const CommandEntry& sub : c.commands) {
    if (path == root.name) break;  // they have pages of their own
    text += fmt::format(".SH {} {}\n", roff(title), roff(sub.name));
    for (const OptionEntry& o : sub.options) text += option_text(o);
  }
  if (!c.footer.empty()) text += ".SH NOTES\n" + literal(c.footer);
  text += ".SH SEE ALSO\n";
  if (path != root.name) return text + ".BR twofour (1)\n";
  for (size_t i = 0; i < c.commands.size(); ++i)
    text += fmt::format(".BR twofour\\-{} (1){}\n", roff(c.commands[i].name),
                        i + 1 < c.commands.size() ? "," : "");
  return text;
}

}  // namespace

std::vector<std::pair<std::string, std::string>> manual_pages(const CommandEntry& root) {
  std::vector<std::pair<std::string, std::string>> pages = {{root.name + ".1", page(root, root.name, root)}};
  for (const CommandEntry& c : root.commands)
    pages.emplace_back(fmt::format("{}-{}.1", root.name, c.name), page(c, root.name + " " + c.name, root));
  return pages;
}

std::function<int()> setup_man(CLI::App& app, const Common& common) {
  auto into = std::make_shared<std::string>();
  app.add_option("DIRECTORY", *into, "Where to write them; it must be there")->required();
  return [into, &app, &common] {
    const std::filesystem::path directory = *into;
    if (!std::filesystem::is_directory(directory))
      throw Error(fmt::format("{}: expected a directory, found none", *into));
    Json files = Json::array();
    for (const auto& [name, text] : manual_pages(command_table(*app.get_parent()))) {
      write_text(directory / name, text);
      files.push_back(name);
    }
    if (common.json) print_json({{"directory", *into}, {"files", files}});
    return kDone;
  };
}

}  // namespace twofour
