#include <fmt/format.h>

#include <algorithm>

#include "formats/error.h"
#include "formats/json/access.h"
#include "lib/base/io/file.h"
#include "lib/base/io/links.h"
#include "lib/lint/bytes/downloads.h"
#include "lib/lint/files/checks.h"
#include "lib/source/config/config_terms.h"
#include "lib/source/config/model_config.h"
#include "lib/source/config/quantization_config.h"
#include "lib/write/plan/auxiliary_files.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// Checks that the code which `auto_map` names exists. "modeling_x.Class" is in the file modeling_x.py.
/// "repo--modeling_x.Class" is in another repository.
void check_auto_map(const LintInput& s, const char* file, const Json& map, LintReporter& reporter) {
  if (map.is_array() || map.is_object()) {
    for (const Json& entry : map) check_auto_map(s, file, entry, reporter);
    return;
  }
  if (!map.is_string()) return;
  const std::string text = map.get<std::string>();
  const size_t dot = text.rfind('.');
  if (text.find("--") != text.npos || dot == text.npos || text.find('/') != text.npos) return;
  std::string code = text.substr(0, dot);
  std::replace(code.begin(), code.end(), '.', '/');
  code += ".py";
  if (!is_absent(s.path / code)) return;
  reporter.add("missing-sidecar", {file, code}, "expected it because auto_map names it ({}), found none",
               text);
}

/// Checks that files exist which tokenizer_config.json names by plain names.
void check_tokenizer_files(const LintInput& s, const Json& config, LintReporter& reporter) {
  for (const char* key :
       {"tokenizer_file", "vocab_file", "merges_file", "spm_file", "sp_model_file", "chat_template_file"}) {
    if (!config.contains(key) || !config[key].is_string()) continue;
    const std::string name = config[key].get<std::string>();
    if (name.empty() || name.find('/') != name.npos || !is_absent(s.path / name)) continue;
    reporter.add("missing-sidecar", {"tokenizer_config.json", name},
                 "expected it because {} names it, found none", key);
  }
}

/// True if there is a file with the vocabulary of a tokenizer.
bool has_vocabulary(const LintInput& s) {
  std::error_code error;
  for (fs::directory_iterator it(s.path, error), end; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    for (const char* known : {"tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "tekken.json",
                              "spiece.model", "sentencepiece.bpe.model", "source.spm"}) {
      if (name == known || name.ends_with(".tiktoken") || name.starts_with("tokenizer.model.")) return true;
    }
  }
  return false;
}

/// Returns the value of the first key in `keys` that has one; null: none has.
Json first_of(const Json& json, std::initializer_list<const char*> keys) {
  for (const char* key : keys) {
    if (json.contains(key)) return json[key];
  }
  return nullptr;
}

/// Compares quantize_config.json of AutoGPTQ and quant_config.json of AutoAWQ with config.json and the
/// tensors.
void check_side_configs(const LintInput& s, LintReporter& reporter) {
  const bool has_codes = std::any_of(s.tensors.begin(), s.tensors.end(),
                                     [](const TensorInfo& t) { return t.name.ends_with("qweight"); });
  for (const char* file : kSideConfigs) {
    const Json side = read_lint_config(s.path, file, reporter);
    if (!side.is_object()) continue;
    if (!has_codes && !s.is_part && !s.lacks_files) {
      reporter.add(
          "config-disagrees", {file, ""},
          "expected weights of GPTQ or AWQ, which it describes, found none; it may be of another save");
      continue;
    }
    const Json& inner = member(side, "quantization_config");
    for (const ConfigTerm& term : find_odd_types(file, "", inner.is_object() ? inner : side))
      reporter.add(term.rule, {term.file, term.key}, term.problem);
    const std::string method = quantization_method(s.quantization);
    if (method != "gptq" && method != "awq") continue;
    const std::initializer_list<const char*> all[] = {
        {"quant_method"},      {"bits", "w_bit"}, {"group_size", "q_group_size"},
        {"checkpoint_format"}, {"desc_act"},      {"sym"},
        {"zero_point"}};
    for (const auto& keys : all) {
      const Json stated = first_of(s.quantization, keys), beside = first_of(side, keys);
      if (stated.is_null() || beside.is_null() || stated == beside) continue;
      if (*keys.begin() == std::string_view("quant_method") && quantization_method(side) == method) continue;
      reporter.add("config-disagrees", {file, *keys.begin()}, "expected {} (config.json), found {}",
                   quoted_setting(stated), quoted_setting(beside));
    }
  }
}

/// Returns why the file at a path cannot be read; empty: it can. Throws ReadError.
std::string why_unreadable(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  if (const std::string link = dangling_link(path); !link.empty()) return "expected a file, found " + link;
  if (error) return fmt::format("expected a file, found one that cannot be examined: {}", error.message());
  if (fs::is_directory(status)) return "expected a file, found a directory";
  if (!fs::is_regular_file(status)) return "expected a regular file, found something else";
  try {
    const InputFile file(path);
    uint8_t byte = 0;
    if (file.size() > 0) file.read(0, {&byte, 1});
  } catch (const Error& e) {
    return damage_of(e, path);
  }
  return {};
}

/// Checks that every file can be read which no other rule opens.
void check_readable(const LintInput& s, LintReporter& reporter) {
  const auto ends = [](const std::string& name, std::initializer_list<const char*> all) {
    return std::any_of(all.begin(), all.end(), [&](const char* end) { return name.ends_with(end); });
  };
  std::error_code error;
  // A folder that cannot be listed has no files that engines load.
  fs::recursive_directory_iterator it(s.path, fs::directory_options::skip_permission_denied, error), end;
  for (; !error && it != end; it.increment(error)) {
    const std::string name = it->path().filename().string();
    const fs::path relative = it->path().lexically_relative(s.path);
    const bool is_top = !relative.has_parent_path();
    std::error_code ignored;
    const bool is_folder = it->is_directory(ignored);  // a folder, or a link to a folder
    if (is_folder &&
        (name.starts_with('.') || !ends(name, {".json", ".jinja", ".model", ".txt", ".tiktoken"}))) {
      if (name.starts_with('.')) it.disable_recursion_pending();
      continue;
    }
    const bool is_read =
        is_top &&
        (ends(name, {".safetensors", ".safetensors.index.json"}) || name == kManifestName ||
         name == "config.json" || name == "hf_quant_config.json" || name == "tokenizer_config.json" ||
         name == "processor_config.json" || name == "preprocessor_config.json" ||
         name == "generation_config.json" || name == kSideConfigs[0] || name == kSideConfigs[1]);
    if (name.starts_with('.') || is_read) continue;
    if (is_folder) it.disable_recursion_pending();
    const std::string why = why_unreadable(it->path());
    if (why.empty() && ends(name, {".json", ".jinja", ".model", ".txt", ".tiktoken", ".py"}))
      report_placeholder(s.path, relative.string(), "a file of the checkpoint", reporter);
    if (why.empty()) continue;
    const bool dangles = it->is_symlink(ignored) && !it->exists(ignored);
    reporter.add(dangles ? "dangling-link" : "unreadable-file", {relative.string(), ""}, why);
  }
  if (error) {
    reporter.add("unreadable-file", {"", ""}, "expected a directory that can be listed, found: {}",
                 error.message());
  }
}

/// Reports links that a conversion would refuse to copy.
void check_links(const LintInput& s, LintReporter& reporter) {
  std::vector<LinkOutside> links;
  try {
    Findings ignored;
    links = find_auxiliary_files(s.path, Links::kInside, ignored).links_outside;
  } catch (const Error&) {
    return;  // other rules report a folder that cannot be listed, or that has the name of a file
  }
  for (const LinkOutside& link : links) {
    reporter.add("link-outside", {link.path.lexically_relative(s.path).string(), ""},
                 "expected a file within the checkpoint, found a link to {}, outside of it",
                 json_quote_short(link.target.string()));
  }
}

/// Returns the tokens without which no conversation begins or ends. That which fills up texts is none: its
/// row may be zero.
std::vector<NeededToken> needed_tokens(const Json& tokenizer, const TokenTable& tokens,
                                       const ChatTemplates& templates) {
  const auto named = [&](const char* key) {
    const Json& token = member(tokenizer, key);
    return token.is_object() ? text_of(token, "content") : text_of(token);
  };
  const std::string begin = named("bos_token"), end = named("eos_token"), pad = named("pad_token");
  std::vector<NeededToken> needed;
  for (const auto& [number, text] : tokens.added) {
    const bool is_needed = text == begin || text == end || (text.size() > 2 && templates.write(text));
    if (is_needed && text != pad) needed.push_back({number, text});
  }
  return needed;
}

}  // namespace

std::vector<NeededToken> lint_auxiliary_files(const LintInput& s, LintReporter& reporter) {
  const Json tokenizer = read_lint_config(s.path, "tokenizer_config.json", reporter);
  const Json processor = read_lint_config(s.path, "processor_config.json", reporter);
  const Json preprocessor = read_lint_config(s.path, "preprocessor_config.json", reporter);
  const std::pair<const char*, const Json*> configs[] = {{"config.json", &s.config},
                                                         {"tokenizer_config.json", &tokenizer},
                                                         {"processor_config.json", &processor},
                                                         {"preprocessor_config.json", &preprocessor}};
  for (const auto& [name, json] : configs) {
    if (json->is_object() && json->contains("auto_map"))
      check_auto_map(s, name, (*json)["auto_map"], reporter);
  }
  if (tokenizer.is_object()) check_tokenizer_files(s, tokenizer, reporter);
  const std::optional<TokenTable> tokens = lint_tokenizer_file(s, tokenizer, reporter);
  const ChatTemplates templates = lint_templates(s, tokenizer, tokens ? &*tokens : nullptr, reporter);
  std::vector<NeededToken> needed;
  if (tokens && tokens->is_known()) {
    lint_tokenizer_model(s, *tokens, reporter);
    lint_tokenizer_steps(s, tokenizer, *tokens, templates, reporter);
    lint_tokenizer_config(s, tokenizer, *tokens, templates, reporter);
    lint_token_numbers(s, tokenizer, *tokens, templates, reporter);
    needed = needed_tokens(tokenizer, *tokens, templates);
  }
  check_side_configs(s, reporter);
  check_readable(s, reporter);
  check_links(s, reporter);
  lint_publishing(s, tokenizer, reporter);
  if (has_vocabulary(s)) return needed;
  if (is_absent(s.path / "tokenizer_config.json")) {
    reporter.add("no-tokenizer", {"", ""},
                 "expected tokenizer.json, tokenizer.model or the like, found none");
  } else if (tokenizer.is_object() && !tokenizer.contains("auto_map")) {
    reporter.add("missing-sidecar", {"tokenizer_config.json", "tokenizer.json"},
                 "expected the vocabulary that the tokenizer needs (tokenizer.json, tokenizer.model or the "
                 "like), found none");
  }
  return needed;
}

}  // namespace twofour
