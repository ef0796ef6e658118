#include <algorithm>

#include "tests/support/faults/planted.h"
#include "tests/support/faults/spoil.h"

// Tokenizers, chat templates and defaults of generation: clauses 6.1 to 6.3. The bases have 320 rows, kGlm
// 640.

namespace twofour {
namespace {

using namespace spoil;
using enum Base;
constexpr Expect kFault = Expect::kFault, kHarmless = Expect::kHarmless;

constexpr const char* kConversation =
    "{%- for message in messages %}{{- '<|im_start|>' + message['role'] + '\\n' }}"
    "{%- if message.content is string and '<|think|>' not in message.content %}{{ message.content | trim }}"
    "{%- else %}{{ message.content.split('<|think|>')[-1] }}{%- endif %}{{ '<|im_end|>\\n' }}{%- endfor %}"
    "{% if add_generation_prompt %}{% generation %}{{ '<|im_start|>assistant\\n' }}{% endgeneration %}{% "
    "endif %}";

/// A tokenizer of letters, some words, and three added tokens.
Json letters(int words) {
  Json vocabulary = Json::object(), added = Json::array();
  for (int i = 0; i < words - 1; ++i)
    vocabulary[i < 26 ? std::string(1, char('a' + i)) : "w" + std::to_string(i)] = i;
  vocabulary["ab"] = words - 1;
  int number = words;
  for (const char* text : {"<|im_start|>", "<|im_end|>", "<|endoftext|>"})
    added.push_back({{"id", number++}, {"content", text}, {"special", true}});
  return {{"version", "1.0"},
          {"added_tokens", added},
          {"model", {{"type", "BPE"}, {"vocab", vocabulary}, {"merges", Json::array({"a b"})}}}};
}

/// Gives a base a tokenizer and changes it and tokenizer_config.json.
Change tokenizer(std::function<void(Json&)> change, std::function<void(Json&)> change_config = {},
                 int words = 300) {
  return [=](Save& s, std::mt19937&) {
    Json json = letters(words);
    if (change) change(json);
    s.files["tokenizer.json"] = format_json(json);
    Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                   {"bos_token", nullptr},
                   {"eos_token", "<|im_end|>"},
                   {"pad_token", {{"content", "<|endoftext|>"}, {"special", true}}},
                   {"chat_template", kConversation}};
    if (change_config) change_config(config);
    s.files["tokenizer_config.json"] = format_json(config);
    s.files["generation_config.json"] = format_json({{"eos_token_id", words + 1}});
  };
}
Change config_of(std::function<void(Json&)> change) { return tokenizer({}, std::move(change)); }
Change chat_template(Json text) {
  return config_of([text = std::move(text)](Json& j) { j["chat_template"] = text; });
}
Change generation(Json settings) {
  return [settings = std::move(settings)](Save& s, std::mt19937&) {
    s.edit("generation_config.json", [&](Json& j) {
      for (const auto& [key, value] : settings.items()) j[key] = value;
    });
  };
}
/// With a file beside the tokenizer's.
Change beside(std::string file, std::string text, std::function<void(Json&)> change = {}) {
  return [=](Save& s, std::mt19937& r) {
    config_of(change)(s, r);
    s.files[file] = text;
  };
}

std::vector<Planted> tokens() {
  const auto add = [](int number, const char* text) {
    return tokenizer([=](Json& j) { j["added_tokens"].push_back({{"id", number}, {"content", text}}); });
  };
  return {
      {"6.1", kLlama, kFault, "a token beyond the embedding", "it reads behind the last row",
       "tokenizer-size 151643", add(151643, "<|tool|>")},
      {"6.1", kLlama, kFault, "two tokens of one number", "one is read as the other", "token-ids 301",
       add(301, "<|tool|>")},
      {"6.1", kLlama, kFault, "two words of one number", "one is read as the other", "token-ids",
       tokenizer([](Json& j) { j["model"]["vocab"]["zz"] = 5; })},
      {"6.1", kLlama, kFault, "an added token on a word", "the word is read as the token", "token-ids 7",
       add(7, "<|tool|>")},
      {"6.1", kLlama, kFault, "a word with another number among the added tokens", "it is read as another",
       "token-ids w40", add(302, "w40")},
      {"6.1", kLlama, kFault, "an end that no token is", "generation does not end", "eos_token",
       config_of([](Json& j) { j["eos_token"] = "<|eot|>"; })},
      {"6.1", kLlama, kFault, "merges of other words", "the library refuses them", "merges",
       tokenizer([](Json& j) { j["model"]["merges"] = Json::array({"q x"}); })},
      {"6.1", kLlama, kFault, "merges of other words, as pairs", "the library refuses them", "merges",
       tokenizer([](Json& j) {
         j["model"]["merges"] = Json::array({Json::array({"q", "x"})});
       })},
      {"6.1", kLlama, kFault, "no model", "the library refuses the file", "bad-tokenizer",
       tokenizer([](Json& j) { j.erase("model"); })},
      {"6.1", kGlm, kFault, "a tenth of the words", "most texts are other tokens", "tokenizer-size 640",
       tokenizer({}, {}, 60)},
      {"6.1", kGlm, kFault, "two fifths of the words", "many texts are other tokens", "tokenizer-size 640",
       tokenizer({}, {}, 266)},
      {"6.1", kLlama, kFault, "a list with other numbers", "the end is read as another token", "token-ids",
       config_of([](Json& j) {
         j["added_tokens_decoder"]["300"] = {{"content", "<|im_end|>"}};
       })},
      {"6.1", kLlama, kFault, "a list with other texts", "the pad is called otherwise", "token-ids 302",
       config_of([](Json& j) {
         j["added_tokens_decoder"]["302"] = {{"content", "<|other|>"}};
       })},
      {"6.1", kLlama, kFault, "a map of another end", "which ends a text depends on the reader",
       "special_tokens_map", beside("special_tokens_map.json", R"({"eos_token": "<|endoftext|>"})")},
      {"6.1", kLlama, kFault, "other numbers in added_tokens.json", "the end is read as another token",
       "added_tokens.json", beside("added_tokens.json", R"({"<|im_end|>": 300})")},
      {"6.1", kLlama, kHarmless, "a tokenizer that agrees", "all files say the same", "",
       beside("special_tokens_map.json", R"({"eos_token": {"content": "<|im_end|>"}})",
              [](Json& j) {
                j["added_tokens_decoder"]["301"] = {{"content", "<|im_end|>"}};
              })},
      {"6.1", kLlama, kHarmless, "a word that is an added token, too", "it has one number", "",
       add(40, "w40")},
      {"6.1", kLlama, kHarmless, "an image's token behind the rows", "features take its place", "",
       add(320, "<image_soft_token>")},
      {"6.1", kLlama, kHarmless, "a vocabulary of pieces", "their places are their numbers", "",
       tokenizer([](Json& j) {
         Json pieces = Json::array();
         for (int i = 0; i < 300; ++i) pieces.push_back(Json::array({"p" + std::to_string(i), -1.5}));
         j["model"] = {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", pieces}};
       })},
  };
}

/// Steps around the words, other files with words, and rows.
std::vector<Planted> steps() {
  const auto step = [](const char* key, Json value) { return tokenizer([=](Json& j) { j[key] = value; }); };
  const Change zero_row = map_rows("model.embed_tokens.weight", [](int64_t r, uint8_t* bytes, size_t n) {
    if (r == 300) std::fill_n(bytes, n, 0);
  });
  const auto flag = [](const char* number, const char* text, bool special) {
    return config_of([=](Json& j) {
      j["added_tokens_decoder"][number] = {{"content", text}, {"special", special}};
    });
  };
  const Json of_bytes = {{"type", "ByteLevel"}};
  const Json metaspace = {{"type", "Sequence"}, {"pretokenizers", Json::array({{{"type", "Metaspace"}}})}};
  const Json sep = {{"type", "RobertaProcessing"}, {"sep", Json::array({"<|im_end|>", 2})}};
  const Json right = {{"type", "RobertaProcessing"}, {"sep", Json::array({"<|im_end|>", 301})}};
  const Json batch = {{"strategy", "BatchLongest"}, {"pad_id", 302}};
  return {
      {"6.1", kLlama, kFault, "texts cut", "the end of prompts is lost", "tokenizer-steps truncation",
       step("truncation", {{"max_length", 4096}, {"direction", "Left"}})},
      {"6.1", kLlama, kFault, "texts filled up", "prompts are of pads", "tokenizer-steps padding",
       step("padding", {{"strategy", {{"Fixed", 256}}}})},
      {"6.1", kLlama, kFault, "blanks without a way back", "answers have another letter for them",
       "tokenizer-steps decoder", step("pre_tokenizer", metaspace)},
      {"6.1", kLlama, kFault, "another number behind each text", "prompts end with a word",
       "token-ids post_processor 301", step("post_processor", sep)},
      {"6.1", kLlama, kFault, "a begin of turns that one file calls a text", "it is printed",
       "token-flags im_start", flag("300", "<|im_start|>", false)},
      {"6.1", kLlama, kFault, "other numbers of two words", "slow tokenizers read other texts",
       "token-ids vocab.json", beside("vocab.json", R"({"a": 0, "b": 2, "c": 1})")},
      {"6.1", kLlama, kFault, "no row for the begin of turns", "the model does not see it",
       "token-row embed_tokens im_start", all_of({tokenizer({}), zero_row})},
      {"6.1", kLlama, kHarmless, "the longest of a batch", "it cuts and adds nothing by itself", "",
       step("padding", batch)},
      {"6.1", kLlama, kHarmless, "the right number behind each text", "it is the end", "",
       step("post_processor", right)},
      {"6.1", kLlama, kHarmless, "bytes with their decoder", "they come back", "", tokenizer([=](Json& j) {
         j["pre_tokenizer"] = of_bytes;
         j["decoder"] = of_bytes;
         j["truncation"] = nullptr;
       })},
      {"6.1", kLlama, kHarmless, "another flag of what no template writes", "engines add it by themselves",
       "", flag("302", "<|endoftext|>", false)},
      {"6.1", kLlama, kHarmless, "the words once more", "they have the same numbers", "",
       beside("vocab.json", R"({"a": 0, "b": 1, "w40": 40})")},
  };
}

std::vector<Planted> templates() {
  constexpr const char* kWhy = "each request of a conversation fails";
  const auto fault = [](const char* what, Json text) {
    return Planted{"6.2", kLlama, kFault, what, kWhy, "bad-chat-template", chat_template(std::move(text))};
  };
  return {
      fault("a loop that does not end", "{% for m in messages %}{{ m.content }}"),
      fault("another end of a loop", "{% if a %}b{% endfor %}"),
      fault("a string that does not end", "{{ 'a }}"),
      fault("a bracket that does not close", "{{ m['a' }}"),
      fault("empty", ""),
      fault("of blanks", " \n"),
      fault("a statement that nobody knows", "{% fro m in messages %}a{% endfro %}"),
      fault("no condition", "{% if %}b{% endif %}"),
      fault("nothing behind an operator", "{{ a + }}"),
      fault("a remark that does not end", "a{# b"),
      fault("a list with a wrong one", Json::array({{{"name", "tool"}, {"template", "{% if %}"}}})),
      {"6.2", kLlama, kFault, "an empty file", kWhy, "chat_template.jinja bad-chat-template",
       beside("chat_template.jinja", "", [](Json& j) { j.erase("chat_template"); })},
      {"6.2", kLlama, kFault, "tokens of another model", "they are read as letters",
       "missing-token start_header_id",
       chat_template("{% for m in messages %}{{ '<|start_header_id|>' + m.role }}{% endfor %}")},
      {"6.2", kLlama, kFault, "no beginning of the answer", "the model writes a role itself", "template-gap",
       chat_template("{% for m in messages %}{{ '<|im_start|>' ~ m['role'] ~ '\n' ~ m['content'] }}"
                     "<|im_end|>{% endfor %}")},
      {"6.2", kLlama, kHarmless, "an answer behind a bracket", "the user's turn ends in such a way", "",
       chat_template("{{ bos_token }}{% for m in messages %}{% if m['role'] == 'user' %}"
                     "{{ '[INST] ' + m['content'] + ' [/INST]' }}{% elif m.role != 'assistant' %}"
                     "{{ raise_exception('no role ' + m.role) }}{% else %}{{ m['content'] + eos_token }}"
                     "{% endif %}{% endfor %}")},
      {"6.2", kLlama, kHarmless, "several by name", "the first is the default", "",
       chat_template(Json::array({{{"name", "default"}, {"template", kConversation}}}))},
      {"6.2", kLlama, kHarmless, "macros, slices, tests and raw text", "it is Jinja", "",
       chat_template(
           "{%- macro f(a, b=none) -%}{{ a[1:] ~ (b or '') }}{%- endmacro -%}{# x #}"
           "{% set ns = namespace(last=-1) %}{% set ns.last = 3 %}{% set t %}x{% endset %}"
           "{% for k, v in {'a': {'b': 1}}.items() if v is not none %}{{ f(k, b=\"}}\") }}"
           "{% if not loop.last and k is defined %}{% continue %}{% elif k in ['a', 'b'] %}y{% endif %}"
           "{% else %}{% break %}{% endfor %}{% raw %}{{ {% endraw %}{{ ns.last // 2 - -1 }}"
           "{% call f('a') %}z{% endcall %}{{ messages[::-1] | length }}")},
  };
}

std::vector<Planted> defaults() {
  constexpr const char* kWhy = "each request that does not say it fails";
  const auto fault = [](const char* what, const char* place, Json settings) {
    return Planted{"6.3", kLlama, kFault, what, kWhy, place, generation(std::move(settings))};
  };
  const auto ends = [](const char* token, Json settings) {
    return all_of({config_of([=](Json& j) { j["eos_token"] = token; }), generation(std::move(settings))});
  };
  constexpr const char* kNoEnd = "answers do not end";
  return {
      {"6.3", kLlama, kFault, "the end of texts alone", kNoEnd, "turn-end 301",
       ends("<|im_end|>", {{"eos_token_id", Json::array({302})}})},
      {"6.3", kLlama, kFault, "another end of the tokenizer, too", kNoEnd, "turn-end 301",
       ends("<|endoftext|>", {{"eos_token_id", 302}, {"do_sample", true}})},
      {"6.3", kLlama, kFault, "a begin for an end", kNoEnd, "token-ids generation_config eos_token_id",
       all_of({config_of([](Json& j) { j["bos_token"] = "<|im_start|>"; }),
               generation({{"eos_token_id", 300}, {"bos_token_id", 301}})})},
      {"6.3", kLlama, kFault, "a word for an end", kNoEnd, "token-ids generation_config eos_token_id",
       ends("<|im_end|>", {{"eos_token_id", 2}})},
      {"6.3", kLlama, kHarmless, "a base model with the template of its siblings", "it is for texts", "",
       ends("<|endoftext|>", {{"eos_token_id", 302}, {"do_sample", false}})},
      {"6.3", kLlama, kHarmless, "two ends", "the template writes one of them", "",
       ends("<|endoftext|>", {{"eos_token_id", Json::array({302, 301})}, {"do_sample", true}})},
      fault("samples without temperature", "temperature", {{"do_sample", true}, {"temperature", 0}}),
      fault("a temperature as text", "temperature", {{"temperature", "0.7"}}),
      fault("more than all", "top_p", {{"top_p", 1.5}}),
      fault("fewer than none", "top_k", {{"top_k", -5}}),
      fault("no repetition at all", "repetition_penalty", {{"repetition_penalty", 0}}),
      fault("an end as text", "eos_token_id", {{"eos_token_id", "</s>"}}),
      fault("no new token", "max_new_tokens", {{"max_new_tokens", 0}}),
      fault("an end beyond the vocabulary", "eos_token_id", {{"eos_token_id", Json::array({0, 151645})}}),
      {"6.3", kLlama, kHarmless, "greedy", "nothing is sampled", "",
       generation({{"do_sample", false}, {"temperature", 0}, {"top_k", 0}, {"top_p", 1.0}})},
      {"6.3", kLlama, kHarmless, "all tokens, as vLLM says it", "-1 takes all", "",
       generation({{"top_k", -1}})},
  };
}

}  // namespace

std::vector<Planted> planted_tokens() {
  std::vector<Planted> all;
  for (const auto& part : {tokens(), steps(), templates(), defaults()})
    all.insert(all.end(), part.begin(), part.end());
  return all;
}

}  // namespace twofour
