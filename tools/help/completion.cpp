#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "tools/cli/command.h"
#include "tools/cli/program.h"

namespace twofour {
namespace {

/// Quotes `text` with single quotes for a shell.
std::string shell_quoted(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

std::string joined_names(const std::vector<CommandEntry>& commands) {
  std::string names;
  for (const CommandEntry& c : commands) names += (names.empty() ? "" : " ") + c.name;
  return names;
}

/// The values of an argument that completion offers.
std::vector<std::string> offered(const ArgumentEntry& o) {
  std::vector<std::string> values = o.choices;
  values.insert(values.end(), o.suggestions.begin(), o.suggestions.end());
  return values;
}

/// Adds the cases of one command. Cases for the values of each option go to `values`, and cases for other
/// words to `words`.
void add_bash_cases(const CommandEntry& c, const std::string& path, std::string& values, std::string& words) {
  std::string options;
  for (const ArgumentEntry& o : c.options) {
    for (const std::string& name : o.names) {
      options += (options.empty() ? "" : " ") + name;
      if (o.value.empty()) continue;
      const std::vector<std::string> all = offered(o);
      const std::string what = !all.empty()
                                   ? fmt::format("{} {}", o.is_list ? "list" : "values", fmt::join(all, " "))
                               : o.path ? "files"
                                        : "nothing";
      values += fmt::format("    '{} {}') after='{}' ;;\n", path, name, what);
    }
  }
  std::string plain = joined_names(c.commands);
  const bool files = std::any_of(c.positionals.begin(), c.positionals.end(), [](auto& p) { return p.path; });
  for (const ArgumentEntry& p : c.positionals) {
    for (const std::string& choice : p.choices) plain += (plain.empty() ? "" : " ") + choice;
  }
  words +=
      fmt::format("    '{}') options='{}' plain='{}' files={} ;;\n", path, options, plain, files ? 1 : 0);
  for (const CommandEntry& sub : c.commands)
    add_bash_cases(sub, path.empty() ? sub.name : path + " " + sub.name, values, words);
}

/// Adds the paths of all commands that have subcommands.
void add_parents(const CommandEntry& c, const std::string& path, std::string& cases) {
  for (const CommandEntry& sub : c.commands) {
    cases += fmt::format("      '{}') command='{}' ;;\n", path.empty() ? sub.name : path + " " + sub.name,
                         path.empty() ? sub.name : path + " " + sub.name);
    add_parents(sub, path.empty() ? sub.name : path + " " + sub.name, cases);
  }
}

/// The value of an option or a positional argument, in the form that zsh's _arguments takes.
std::string zsh_value(const ArgumentEntry& o) {
  const auto escaped = [](const std::string& text) {
    std::string out;
    for (const char c : text) out += c == ':' ? "\\:" : std::string(1, c);
    return out;
  };
  if (const std::vector<std::string> all = offered(o); !all.empty()) {
    std::string list;
    for (const std::string& choice : all) list += (list.empty() ? "" : " ") + escaped(choice);
    return o.is_list ? fmt::format(":{}:_sequence compadd - {}", o.value, list)
                     : fmt::format(":{}:({})", o.value, list);
  }
  return fmt::format(":{}:{}", o.value, o.path ? "_files" : " ");
}

void add_zsh_function(const CommandEntry& c, const std::string& function, std::string& out) {
  out += fmt::format("{}() {{\n  _arguments -s -S", function);
  for (const ArgumentEntry& o : c.options) {
    std::string text;
    for (const char letter : o.description)
      text += letter == '[' || letter == ']' || letter == ':' ? std::string("\\") + letter
                                                              : std::string(1, letter);
    for (const std::string& name : o.names) {
      const bool joins = name.starts_with("--") && !o.value.empty();
      out += " \\\n    " +
             shell_quoted(fmt::format("{}{}{}[{}]{}", o.repeated ? "*" : "", name, joins ? "=" : "", text,
                                      o.value.empty() ? "" : zsh_value(o)));
    }
  }
  for (const ArgumentEntry& p : c.positionals) out += " \\\n    " + shell_quoted(zsh_value(p));
  if (c.commands.empty()) {
    out += "\n}\n\n";
    return;
  }
  out +=
      " \\\n    '1: :->command' '*:: :->rest'\n  case $state in\n    command)\n      local -a commands=(\n";
  for (const CommandEntry& sub : c.commands)
    out += fmt::format("        {}\n", shell_quoted(sub.name + ":" + sub.summary));
  out += "      )\n      _describe command commands ;;\n    rest)\n      case $words[1] in\n";
  for (const CommandEntry& sub : c.commands)
    out += fmt::format("        {0}) {1}_{0} ;;\n", sub.name, function);
  out += "      esac ;;\n  esac\n}\n\n";
  for (const CommandEntry& sub : c.commands) add_zsh_function(sub, function + "_" + sub.name, out);
}

/// Adds fish's lines for a command. `path` has the names of the commands above it, in order.
void add_fish_lines(const CommandEntry& c, const std::vector<std::string>& path, std::string& out) {
  std::string here = path.empty() ? "__fish_use_subcommand" : "";
  for (const std::string& word : path)
    here += (here.empty() ? "" : "; and ") + fmt::format("__fish_seen_subcommand_from {}", word);
  if (!path.empty() && !c.commands.empty())
    here += fmt::format("; and not __fish_seen_subcommand_from {}", joined_names(c.commands));
  for (const CommandEntry& sub : c.commands)
    out += fmt::format("complete -c twofour -n {} -f -a {} -d {}\n", shell_quoted(here), sub.name,
                       shell_quoted(sub.summary));
  for (const ArgumentEntry& p : c.positionals) {
    if (p.path) out += fmt::format("complete -c twofour -n {} -F\n", shell_quoted(here));
    if (!p.choices.empty())
      out += fmt::format("complete -c twofour -n {} -f -a {}\n", shell_quoted(here),
                         shell_quoted(fmt::format("{}", fmt::join(p.choices, " "))));
  }
  for (const ArgumentEntry& o : c.options) {
    std::string line = fmt::format("complete -c twofour -n {}", shell_quoted(here));
    for (const std::string& name : o.names)
      line += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
    const std::vector<std::string> all = offered(o);
    if (!all.empty() && o.is_list) {
      line +=
          fmt::format(" -x -a {}", shell_quoted(fmt::format("(__fish_append , {})", fmt::join(all, " "))));
    } else if (!all.empty()) {
      line += fmt::format(" -x -a {}", shell_quoted(fmt::format("{}", fmt::join(all, " "))));
    } else if (!o.value.empty()) {
      line += o.path ? " -r -F" : " -x";
    }
    out += line + fmt::format(" -d {}\n", shell_quoted(o.description));
  }
  for (const CommandEntry& sub : c.commands) {
    std::vector<std::string> below = path;
    below.push_back(sub.name);
    add_fish_lines(sub, below, out);
  }
}

}  // namespace

std::string bash_completion(const CommandEntry& root) {
  std::string values, words, parents;
  add_bash_cases(root, "", values, words);
  add_parents(root, "", parents);
  // The script splits the line at blanks. bash's own words end at ':' and '=', which occur in 2:4 and
  // --to=v7.
  return fmt::format(R"(# bash completion of twofour; `twofour completion bash` wrote it.
_twofour() {{
  local line=${{COMP_LINE:0:COMP_POINT}} command= after= options= plain= files=0 prefix= sign word i
  local -a words
  read -ra words <<<"$line"
  [[ $line == *[[:blank:]] ]] && words+=('')
  local last=$((${{#words[@]}} - 1))
  local current=${{words[last]}} previous=${{words[last - 1]}}
  for ((i = 1; i < last; ++i)); do
    case "${{command:+$command }}${{words[i]}}" in
{}    esac
  done
  if [[ $current == --*=* ]]; then
    previous=${{current%%=*}}
    current=${{current#*=}}
  fi
  case "$command $previous" in
{}  esac
  case "$command" in
{}  esac
  COMPREPLY=()
  if [[ $after == values* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "${{after#values }}" -- "$current")
  elif [[ $after == list* ]]; then
    [[ $current == *,* ]] && prefix=${{current%,*}},
    mapfile -t COMPREPLY < <(compgen -P "$prefix" -W "${{after#list }}" -- "${{current##*,}}")
  elif [[ $after == files || ( -z $after && $current != -* && $files == 1 ) ]]; then
    compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen -f -- "$current")
  elif [[ -z $after && $current == -* ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$options" -- "$current")
  elif [[ -z $after ]]; then
    mapfile -t COMPREPLY < <(compgen -W "$plain" -- "$current")
  fi
  # bash puts a completion behind the last ':' or '=' of what was typed.
  for sign in : =; do
    [[ $current == *$sign* && $COMP_WORDBREAKS == *$sign* ]] || continue
    word=${{current%"${{current##*$sign}}"}}
    for i in "${{!COMPREPLY[@]}}"; do COMPREPLY[i]=${{COMPREPLY[i]#"$word"}}; done
  done
}}
complete -F _twofour twofour
)",
                     parents, values, words);
}

std::string zsh_completion(const CommandEntry& root) {
  std::string out = "#compdef twofour\n# zsh completion of twofour; `twofour completion zsh` wrote it.\n\n";
  add_zsh_function(root, "_twofour", out);
  // If zsh loads the script from fpath, the first call completes. If the script is sourced, it only registers
  // itself.
  return out +
         "if [[ $funcstack[1] == _twofour ]]; then\n  _twofour \"$@\"\nelse\n  compdef _twofour "
         "twofour\nfi\n";
}

std::string fish_completion(const CommandEntry& root) {
  std::string out =
      "# fish completion of twofour; `twofour completion fish` wrote it.\ncomplete -c twofour -f\n";
  add_fish_lines(root, {}, out);
  return out;
}

std::function<int()> setup_completion(Arguments& args, const Common& common) {
  auto shell = std::make_shared<std::string>();
  args.option("SHELL", *shell, "Shell to write for").required().one_of({"bash", "zsh", "fish"});
  return [shell, &args, &common] {
    const CommandEntry table = args.root().entry();
    const std::string script = *shell == "bash"  ? bash_completion(table)
                               : *shell == "zsh" ? zsh_completion(table)
                                                 : fish_completion(table);
    if (common.json) {
      print_json({{"shell", *shell}, {"script", script}});
    } else {
      write_stdout(script);
    }
    return kDone;
  };
}

}  // namespace twofour
