#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <span>
#include <string_view>

#include "formats/error.h"
#include "lib/base/findings/options.h"
#include "lib/base/io/file.h"
#include "lib/base/io/links.h"
#include "lib/repair/repair.h"

namespace twofour {

namespace {

constexpr std::string_view kTokenizerFiles[] = {
    "tokenizer.json",      "tokenizer.model",   "tokenizer_config.json", "special_tokens_map.json",
    "vocab.json",          "merges.txt",        "added_tokens.json",     "vocab.txt",
    "spiece.model",        "tiktoken.model",    "tekken.json",           "sentencepiece.bpe.model",
    "chat_template.jinja", "chat_template.json"};
constexpr std::string_view kTemplateFiles[] = {"chat_template.jinja", "chat_template.json",
                                               "tokenizer_config.json"};

constexpr const char* kGeneration = "generation_config.json";

std::optional<std::string> text_of_donor(const Repair& r, std::string_view name) {
  const auto path = r.donor->path() / name;
  if (is_absent(path)) return std::nullopt;
  return read_text(open_below(r.donor->path(), path, Links::kInside));
}

class DonorFiles {
 public:
  DonorFiles(Repair& repair, MendRecord& record) : r_(repair), record_(record) {}

  bool run() {
    const bool lacks_config = r_.edited.config.is_null();
    note({"token-ids"}, ids_, [](const LintFinding& f) { return f.file == "config.json"; });
    note({"token-ids", "bad-config", "not-downloaded"}, generation_,
         [](const LintFinding& f) { return f.file == kGeneration; });
    note({"missing-sidecar"}, named_, [](const LintFinding& f) { return !is_of_tokenizer(f.name); });
    note({"no-tokenizer", "bad-tokenizer", "tokenizer-size", "token-ids", "missing-token", "tokenizer-steps",
          "token-flags"},
         tokenizer_, [](const LintFinding& f) { return is_of_tokenizer(f.file); });
    note({"bad-config", "missing-sidecar", "not-downloaded"}, tokenizer_,
         [](const LintFinding& f) { return is_of_tokenizer(f.file); });
    note({"bad-chat-template", "template-gap", "two-chat-templates", "no-chat-template"}, template_,
         [](const LintFinding&) { return true; });
    note({"no-config", "bad-config", "not-downloaded"}, config_, [&](const LintFinding& f) {
      // A file that Python does not read may be one that twofour reads.
      return lacks_config ? f.file.empty() || f.file == "config.json"
                          : f.file == "config.json" && f.name.empty();
    });
    const auto all = {&config_, &tokenizer_, &template_, &ids_, &generation_, &named_};
    if (std::ranges::all_of(all, [](auto* findings) { return findings->empty(); })) return false;
    if (r_.donor == nullptr || !r_.donor->is_directory()) return leave_all();
    const bool is_optional = std::ranges::all_of(all, [](auto* findings) {
      return std::ranges::all_of(*findings, [](auto* f) { return lint_rules()[f->rule].opt_in; });
    });
    if (is_optional && !is_of_model()) return false;
    if (!is_optional) refuse_other_model(r_);
    bool mended = !config_.empty() && take_config();
    if (!ids_.empty()) mended = take_ids() || mended;
    if (!generation_.empty()) mended = take_there(kGeneration, generation_) || mended;
    for (const LintFinding* f : named_) mended = take_there(f->name, {f}) || mended;
    if (!tokenizer_.empty()) {
      mended = take(kTokenizerFiles, tokenizer_) || mended;
    } else if (!template_.empty()) {
      mended = take(kTemplateFiles, template_) || mended;
    }
    return mended;
  }

 private:
  /// True if the donor is one of the same model. What is off by default is no reason to refuse another.
  bool is_of_model() {
    try {
      refuse_other_model(r_);
    } catch (const ReadError&) {
      throw;
    } catch (const Error&) {
      return false;
    }
    return true;
  }
  static bool is_of_tokenizer(const std::string& file) {
    return file.empty() || std::ranges::find(kTokenizerFiles, file) != std::end(kTokenizerFiles);
  }
  template <class F>
  void note(std::initializer_list<std::string_view> rules, std::vector<const LintFinding*>& to, F&& fits) {
    for (const LintFinding* f : r_.found_in_source(rules)) {
      if (fits(*f)) to.push_back(f);
    }
  }
  void leave(const std::vector<const LintFinding*>& findings, const std::string& why) {
    for (const LintFinding* f : findings) {
      if (f->severity != Severity::kNote) r_.leave(lint_rules()[f->rule].id, f->where(), why);
    }
  }
  bool leave_all() {
    for (const auto* findings : {&config_, &tokenizer_, &template_, &ids_, &generation_, &named_})
      leave(*findings,
            fmt::format("expected {} of the same model, which has the file, found none", options::kDonor));
    return false;
  }
  bool take_config() {
    if (!r_.donor->config().is_object()) return false;
    if (!r_.edited.config.is_null() && r_.edited.config != r_.donor->config()) {
      leave(config_, "the donor's file states other settings");
      return false;
    }
    r_.edited.config = r_.donor->config();
    r_.edited.texts["config.json"] = *text_of_donor(r_, "config.json");
    r_.changed();
    add("config.json", config_);
    return true;
  }
  /// Takes the donor's numbers of tokens. If they are the source's, its tokenizer is another.
  bool take_ids() {
    bool mended = false;
    Json theirs = r_.donor->config();
    for (const LintFinding* f : ids_) {
      const Json* const value = find_setting(theirs, f->name);
      Json* const now = r_.edited.config.is_object() ? find_setting(r_.edited.config, f->name) : nullptr;
      if (value == nullptr || now == nullptr || *value == *now) {
        tokenizer_.push_back(f);
        continue;
      }
      record_.settings.push_back({"config.json", f->name, *now, *value});
      *now = *value;
      r_.changed();
      add("config.json", {f});
      mended = true;
    }
    return mended;
  }
  /// Takes a file that the donor has.
  bool take_there(const std::string& name, const std::vector<const LintFinding*>& why) {
    const bool is_name = !name.empty() && name.find('/') == name.npos && name != "..";
    auto text = is_name ? text_of_donor(r_, name) : std::nullopt;
    if (!text) {
      leave(why, "the donor has no such file");
      return false;
    }
    if (!is_absent(r_.source.path() / name) && read_text(r_.source.open_again(name.c_str())) == *text) {
      leave(why, "the donor has the same file");
      return false;
    }
    r_.edited.texts[name] = std::move(*text);
    add(name, why);
    return true;
  }
  void add(const std::string& name, const std::vector<const LintFinding*>& why) {
    record_.takes_from_donor = true;
    record_.files.insert(name);
    if (r_.edited.texts.contains(name)) record_.bytes += r_.edited.texts[name].size();
    for (const LintFinding* f : why) record_.rules.insert(lint_rules()[f->rule].id);
  }
  /// Takes those of the files that the donor has. The others go.
  bool take(std::span<const std::string_view> names, const std::vector<const LintFinding*>& why) {
    std::map<std::string, std::string> texts;
    for (const std::string_view name : names) {
      if (auto text = text_of_donor(r_, name)) texts[std::string(name)] = std::move(*text);
    }
    if (texts.empty()) {
      leave(why, "the donor has no such file");
      return false;
    }
    bool mended = false;
    for (const std::string_view name : names) {
      const std::string file(name);
      const bool is_there = !is_absent(r_.source.path() / file);
      const auto at = texts.find(file);
      if (at == texts.end()) {
        if (!is_there) continue;
        r_.edited.dropped_files.insert(file);
      } else {
        if (is_there && read_text(r_.source.open_again(file.c_str())) == at->second) continue;
        r_.edited.texts[file] = std::move(at->second);
      }
      add(file, why);
      mended = true;
    }
    return mended;
  }

  Repair& r_;
  MendRecord& record_;
  std::vector<const LintFinding*> config_, tokenizer_, template_, ids_, generation_, named_;
};

}  // namespace

bool mend_from_donor_files(Repair& repair, MendRecord& record) { return DonorFiles(repair, record).run(); }

}  // namespace twofour
