#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <memory>

#include "formats/error.h"
#include "lib/base/findings/version.h"
#include "lib/base/io/file.h"
#include "tools/cli/command.h"
#include "tools/cli/program.h"

namespace twofour {
namespace {

/// Escapes roff's markup in `text`.
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
  for (const ArgumentEntry& p : c.positionals) {
    const std::string name = ".I " + roff(p.value) + "\n";
    text += p.required ? name : fmt::format(".RI [ {} ]\n", roff(p.value));
  }
  return text + ".RI [ OPTIONS ]\n";
}

std::string option_text(const ArgumentEntry& o) {
  std::string text = ".TP\n";
  const auto bold = [](const std::string& name) { return "\\fB" + roff(name) + "\\fR"; };
  for (size_t i = 0; i < o.names.size(); ++i) text += (i > 0 ? ", " : "") + bold(o.names[i]);
  if (!o.value.empty()) text += (o.names.empty() ? "\\fI" : " \\fI") + roff(o.value) + "\\fR";
  text += "\n" + roff(o.description);
  if (!o.choices.empty())
    text += fmt::format(". One of: {}", roff(fmt::format("{}", fmt::join(o.choices, ", "))));
  if (!o.range.empty()) text += fmt::format(". From {}", roff(o.range));
  if (!o.required && !o.default_text.empty()) text += fmt::format(". Default: {}", roff(o.default_text));
  if (o.repeated) text += ". May be given again";
  return text + ".\n";
}

/// roff that shows the lines of a footer unchanged.
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
    for (size_t i = 0; i < c.commands.size(); ++i) {
      const CommandEntry& sub = c.commands[i];
      if (!sub.group.empty() && (i == 0 || c.commands[i - 1].group != sub.group))
        text += fmt::format(".SS {}\n", roff(sub.group));
      text += fmt::format(".TP\n.B {}\n{}.\n", roff(sub.name), roff(sub.summary));
    }
  }
  if (!c.positionals.empty()) text += ".SH ARGUMENTS\n";
  for (const ArgumentEntry& p : c.positionals) text += option_text(p);
  if (!c.examples.empty()) text += ".SH EXAMPLES\n" + literal(fmt::format("{}", fmt::join(c.examples, "\n")));
  text += ".SH OPTIONS\n";
  for (const ArgumentEntry& o : c.options) text += option_text(o);
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

std::function<int()> setup_man(Arguments& args, const Common& common) {
  auto into = std::make_shared<std::string>();
  args.option("DIRECTORY", *into, "Directory to write to; it must exist").required();
  return [into, &args, &common] {
    const std::filesystem::path directory = *into;
    std::error_code error;
    const auto status = std::filesystem::status(directory, error);
    if (error && status.type() != std::filesystem::file_type::not_found)
      throw Error(fmt::format("{}: cannot look at: {}", *into, error.message()));
    if (!std::filesystem::is_directory(status))
      throw Error(fmt::format("{}: expected a directory, found none", *into));
    Json files = Json::array();
    for (const auto& [name, text] : manual_pages(args.root().entry())) {
      write_text(directory / name, text);
      files.push_back(name);
    }
    if (common.json) print_json({{"directory", *into}, {"files", files}});
    return kDone;
  };
}

}  // namespace twofour
