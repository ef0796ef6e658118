#include <doctest/doctest.h>
#include <fmt/format.h>

#include <functional>
#include <string>

#include "formats/json.h"
#include "lib/lint/files/jinja.h"
#include "tests/support/faults/lint_changed.h"

// Tokenizers with as many words as real ones need: merges, bytes, blanks, and the settings beside them.

namespace lint_tokens_test {

using namespace twofour;
using namespace spoil;

namespace {

constexpr const char* kTemplate =
    "{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>\\n' }}{%- endfor %}{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' "
    "}}{%- endif %}";

/// A tokenizer of bytes, whose 1200 words are made by merges: a chain for each of 40 letters.
Json byte_tokenizer() {
  Json words = Json::object(), merges = Json::array();
  int number = 0;
  for (int i = 0; i < 40; ++i)
    words[i == 0 ? "\u0120" : std::string(1, static_cast<char>('0' + i))] = number++;
  for (int i = 0; i < 40; ++i) {
    const std::string letter = i == 0 ? "\u0120" : std::string(1, static_cast<char>('0' + i));
    std::string word = i < 20 ? "\u0120" : "1";
    for (int j = 0; j < 30; ++j) {
      const std::string longer = word + letter;
      if (!words.contains(longer)) {
        words[longer] = number++;
        merges.push_back(Json::array({word, letter}));
      }
      word = longer;
    }
  }
  Json added = Json::array();
  for (const char* text : {"<|im_start|>", "<|im_end|>"})
    added.push_back({{"id", number++}, {"content", text}, {"special", true}});
  const Json step = {{"type", "ByteLevel"}};
  return {{"version", "1.0"},          {"added_tokens", added},
          {"pre_tokenizer", step},     {"decoder", step},
          {"post_processor", nullptr}, {"model", {{"type", "BPE"}, {"vocab", words}, {"merges", merges}}}};
}

/// The rules that find a change of the tokenizer and of tokenizer_config.json, apart from those about its
/// size.
std::set<std::string> found(const std::function<void(Json&)>& change,
                            const std::function<void(Json&)>& settings = {}, const Change& more = {}) {
  const LintReport report = lint_changed(Base::kLlama, [&](Save& s, std::mt19937& random) {
    Json json = byte_tokenizer(), config = {{"eos_token", "<|im_end|>"}, {"chat_template", kTemplate}};
    if (change) change(json);
    if (settings) settings(config);
    s.files["tokenizer.json"] = format_json(json);
    s.files["tokenizer_config.json"] = format_json(config);
    if (more) more(s, random);
  });
  // The base has fewer rows than the tokenizer has words, and other numbers of its ends.
  std::set<std::string> rules;
  const auto add = [&](const LintFinding& f) {
    const bool is_ours = f.file.starts_with("tokenizer") || f.file == "merges.txt";
    if (f.severity != Severity::kNote && is_ours) rules.insert(lint_rules()[f.rule].id);
  };
  for (const LintFinding& f : report.findings) {
    add(f);
    for (const LintFinding& consequence : f.consequences) add(consequence);
  }
  rules.erase("tokenizer-size");
  return rules;
}

using Rules = std::set<std::string>;

}  // namespace

TEST_CASE("Merges of a tokenizer are whole, in order, and those of merges.txt") {
  CHECK(found({}) == Rules{});
  CHECK(found([](Json& j) { j["model"]["merges"] = Json::array(); }).contains("tokenizer-steps"));
  const auto half = [](Json& j) {
    Json kept = Json::array();
    const Json& merges = j["model"]["merges"];
    for (size_t i = 0; 2 * i < merges.size(); ++i) kept.push_back(merges[i]);
    j["model"]["merges"] = kept;
  };
  CHECK(found(half).contains("tokenizer-steps"));
  const auto reverse = [](Json& j) {
    Json reversed = Json::array();
    const Json& merges = j["model"]["merges"];
    for (size_t i = merges.size(); i > 0; --i) reversed.push_back(merges[i - 1]);
    j["model"]["merges"] = reversed;
  };
  CHECK(found(reverse).contains("tokenizer-steps"));
  const auto listed = [](size_t lines) {
    return found({}, {}, [=](Save& s, std::mt19937&) {
      s.files["merges.txt"] = "#version: 0.2\n";
      for (size_t i = 0; i < lines; ++i) s.files["merges.txt"] += "0 1\n";
    });
  };
  CHECK(listed(byte_tokenizer()["model"]["merges"].size()) == Rules{});
  CHECK(listed(100) == Rules{"tokenizer-steps"});
}

TEST_CASE("The steps of a tokenizer write and read blanks as its words have them") {
  CHECK(found([](Json& j) { j["pre_tokenizer"] = nullptr; }) == Rules{"tokenizer-steps"});
  CHECK(found([](Json& j) { j["pre_tokenizer"] = {{"type", "Whitespace"}}; }) == Rules{"tokenizer-steps"});
  CHECK(found([](Json& j) { j["decoder"] = {{"type", "WordPiece"}}; }) == Rules{"tokenizer-steps"});
  CHECK(found([](Json& j) { j["model"]["byte_fallback"] = true; }) == Rules{"tokenizer-steps"});
  CHECK(found([](Json& j) { j["model"]["dropout"] = 0.1; }) == Rules{"tokenizer-steps"});
  CHECK(found([](Json& j) { j["model"]["type"] = "WordLevel"; }) == Rules{"tokenizer-steps"});
  // Steps before that of bytes.
  CHECK(found([](Json& j) {
          j["normalizer"] = {{"type", "NFC"}};
          j["pre_tokenizer"] = {{"type", "Sequence"},
                                {"pretokenizers", {{{"type", "Digits"}}, {{"type", "ByteLevel"}}}}};
        }) == Rules{});
}

TEST_CASE("tokenizer_config.json has lengths, classes and ends that fit") {
  const auto set = [](const char* key, Json value) { return found({}, [=](Json& j) { j[key] = value; }); };
  CHECK(set("model_max_length", 0) == Rules{"odd-setting"});
  CHECK(set("model_max_length", "8192") == Rules{"odd-setting"});
  CHECK(set("model_max_length", 1e30) == Rules{});
  CHECK(set("add_eos_token", true) == Rules{"tokenizer-steps"});
  CHECK(set("add_eos_token", false) == Rules{});
  CHECK(set("tokenizer_class", "LlamaTokenizer") == Rules{"impossible-setting"});
  CHECK(set("tokenizer_class", "LlamaTokenizerFast") == Rules{});
  CHECK(set("additional_special_tokens", Json::array({"<|tool|>"})) == Rules{"missing-token"});
  CHECK(found([](Json& j) { j["added_tokens"][1]["special"] = false; }) == Rules{"token-flags"});
}

TEST_CASE("Templates write all roles and begin the answer") {
  const auto of = [](const std::string& body) {
    return read_template("{% for m in messages %}" + body + "{% endfor %}");
  };
  const std::string user = "{% if m.role == 'user' %}U{{ m.content }}",
                    answer = "{% elif m.role == 'assistant' %}A{{ m.content }}",
                    system = "{% elif m.role == 'system' %}S{{ m.content }}", end = "{% endif %}";
  CHECK(of(user + answer + system + end).lost_role == "");
  CHECK(of(user + system + end).lost_role == "assistant");
  CHECK(of(user + system + "{% else %}A{{ m.content }}" + end).lost_role == "");
  CHECK(of(user + answer + end).answer_head == "A");
  CHECK(of("{{ m.content | trim }}").problem == "");
  CHECK(of("{{ m.content | strip }}").problem == "line 1: expected a filter of Jinja, found strip");
  CHECK(read_template("{{ bos_token }}{{ bos_token }}").repeats_begin);
  CHECK(!read_template("{{ bos_token }}x{{ bos_token }}").repeats_begin);
  CHECK(read_template("{% if add_generation_prompt %}<|user|>{% endif %}").prompt == "<|user|>\n");
}

TEST_CASE("Sums of files in the directory are those of the files") {
  const auto listed = [](const std::string& hash) {
    return rules_of_change(Base::kLlama, [&](Save& s, std::mt19937&) {
      s.files["notes.txt"] = "abc";
      s.files["SHA256SUMS"] = hash + "  notes.txt\n" + std::string(64, 'a') + "  absent.gguf\n";
    });
  };
  // The hash of "abc". Source: FIPS 180-4.
  const std::string right = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
  CHECK(!listed(right).contains("blob-hash"));
  CHECK(listed(std::string(64, '0')).contains("blob-hash"));
}

}  // namespace lint_tokens_test
