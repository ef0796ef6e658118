#include <doctest/doctest.h>
#include <fmt/format.h>

#include <string>
#include <string_view>

#include "lib/source/tokenizer/tokenizer.h"
#include "tests/support/message.h"

namespace malformed_test {

using namespace twofour;

namespace {

/// A file of a model with the tokens a, b, ab and c; `parts` and `model` are further members.
std::string file_of(std::string_view parts, std::string_view model = "",
                    std::string_view vocabulary = R"("a":0,"b":1,"ab":2,"c":3)",
                    std::string_view merges = R"(["a","b"])") {
  return fmt::format(R"({{"version":"1.0"{}{},"model":{{"type":"BPE"{}{},"vocab":{{{}}},"merges":[{}]}}}})",
                     parts.empty() ? "" : ",", parts, model.empty() ? "" : ",", model, vocabulary, merges);
}

std::string message_for(const std::string& text) {
  return message_of([&] { Tokenizer::parse("t.json", text); });
}

/// The problem of a file that has such a pre-tokenizer.
std::string split_message(std::string_view pre_tokenizer) {
  return message_for(file_of(fmt::format(R"("pre_tokenizer":{})", pre_tokenizer)));
}

}  // namespace

TEST_CASE("the file that the others here are made from is sound") {
  const Tokenizer tokenizer = Tokenizer::parse("t.json", file_of(""));
  CHECK(tokenizer.encode("abacb", false) == std::vector<int32_t>{2, 0, 3, 1});
  CHECK(tokenizer.decode(std::vector<int32_t>{2, 0}, false) ==
        "ab a");  // without a decoder, as tokenizers does
}

TEST_CASE("merges need the tokens that they are of, and the one that they make") {
  CHECK(message_for(file_of("", "", R"("a":0,"b":1,"ab":2)", R"("a b","a x")")) ==
        R"(t.json: model: merges[1]: expected tokens of the vocabulary, found "x" of "a" and "x")");
  CHECK(contains(message_for(file_of("", "", R"("a":0,"b":1)", R"("a b")")), R"(found "ab" of "a" and "b")"));
  for (const char* merges :
       {R"("ab")", R"("a b c")", R"(["a"])", R"(["a","b","ab"])", "7", "{}", "null", R"([["a"],"b"])"}) {
    CAPTURE(merges);
    CHECK(contains(message_for(file_of("", "", R"("a":0,"b":1,"ab":2)", merges)),
                   R"(t.json: model.merges[0]: expected two tokens, "A B" or ["A", "B"], found)"));
  }
}

TEST_CASE("an added token of which a normalizer leaves nothing is refused: tokenizers finds it everywhere") {
  const auto with = [](bool normalized) {
    return file_of(fmt::format(
        R"("normalizer":{{"type":"StripAccents"}},"added_tokens":[{{"id":4,"content":"\u0301","normalized":{}}}])",
        normalized));
  };
  CHECK(message_for(with(true)) ==
        "t.json: added_tokens[0]: expected tokens that are not empty when they are normalized, found "
        "\"\u0301\"");
  CHECK(Tokenizer::parse("t.json", with(false)).encode("a\u0301b", false) == std::vector<int32_t>{0, 4, 1});
}

TEST_CASE("every token has one id, below 2^22, and every id one token") {
  CHECK(contains(message_for(file_of("", "", R"("a":0,"b":0,"ab":1)")),
                 R"(expected every id once, found 0 of "a" and "b")"));
  CHECK(contains(message_for(file_of("", "", R"("a":0,"b":1,"ab":2,"a":3)")),
                 R"(expected every token once, found "a" twice)"));
  for (const char* id :
       {"-1", "4194304", "1e3", "0.5", "4294967296", "99999999999999999999", "\"7\"", "null", "[1]", "{}"}) {
    CAPTURE(id);
    CHECK(contains(message_for(file_of("", "", fmt::format(R"("a":0,"b":{})", id))),
                   R"(t.json: model.vocab: "b": expected an id below 4194304, found)"));
  }
  CHECK(message_for(file_of("", "", "", "")) == "t.json: model.vocab: expected tokens, found none");
}

TEST_CASE("models and parts that no supported family has are refused by name") {
  CHECK(message_for(R"({"model":{"type":"Unigram","vocab":[]}})") ==
        "t.json: model.type: expected BPE, found \"Unigram\"");
  CHECK(contains(message_for(file_of("", R"("dropout":0.1)")),
                 "t.json: model.dropout: expected none, found 0.1"));
  CHECK(message_for(file_of("", R"("dropout":null,"end_of_word_suffix":"","continuing_subword_prefix":null)"))
            .empty());
  CHECK(contains(message_for(file_of("", R"("end_of_word_suffix":"</w>")")),
                 "model.end_of_word_suffix: expected none"));
  CHECK(contains(message_for(file_of("", R"("unk_token":"?")")),
                 R"(unk_token: expected a token of the vocabulary, found "?")"));
  CHECK(contains(message_for(file_of("", R"("byte_fallback":true)")), "found none of <0x00>"));
  CHECK(contains(message_for(file_of(R"("normalizer":{"type":"Precompiled"})")),
                 "t.json: normalizer.type: expected one of NFC,"));
  CHECK(contains(split_message(R"({"type":"Sequence","pretokenizers":[{"type":"BertPreTokenizer"}]})"),
                 "t.json: pre_tokenizer.pretokenizers[0].type: expected one of ByteLevel,"));
  CHECK(contains(message_for(file_of(R"("decoder":{"type":"WordPiece"})")),
                 "t.json: decoder.type: expected one of"));
  CHECK(contains(message_for(file_of(R"("post_processor":{"type":"BertProcessing"})")),
                 "t.json: post_processor.type: expected one of"));
  CHECK(message_for(R"({"version":"2.0"})") == R"(t.json: version: expected 1.0, found "2.0")");
}

TEST_CASE("what has another type than it must have is refused with its place") {
  CHECK(contains(message_for("[1]"), "expected an object, found an array"));
  CHECK(contains(message_for("7"), "expected an object, found number"));
  CHECK(contains(message_for("{}"), "t.json: model: expected an object, found null"));
  CHECK(contains(message_for(R"({"model":7})"), "t.json: model: expected an object, found 7"));
  CHECK(contains(message_for(R"({"model":{"vocab":[1],"merges":[]}})"),
                 "t.json: model.vocab: expected an object, found array"));
  CHECK(contains(message_for(R"({"model":{"vocab":{"a":0},"merges":{"a":1}}})"),
                 "t.json: model.merges: expected an array, found object"));
  CHECK(contains(message_for(file_of("", R"("fuse_unk":1)")),
                 "model.fuse_unk: expected true or false, found 1"));
  CHECK(contains(message_for(file_of(R"("normalizer":[])")),
                 "t.json: normalizer: expected an object, found array"));
  CHECK(contains(split_message(R"({"type":"Split","pattern":{"Regex":"a"},"behavior":"Isolate"})"),
                 "pre_tokenizer.behavior: expected one of Removed, Isolated,"));
  CHECK(contains(split_message(R"({"type":"Split","pattern":"a","behavior":"Isolated"})"),
                 "pre_tokenizer.pattern: expected an object"));
  CHECK(contains(split_message(R"({"type":"Metaspace","replacement":"ab"})"),
                 "replacement: expected one character"));
  CHECK(contains(message_for(R"({"a":1,"model":{},"a":2})"), R"(expected every key once, found "a" twice)"));
  CHECK(contains(message_for(R"({"model":{"vocab":{},"vocab":{}}})"),
                 "model.vocab: expected it once, found it twice"));
}

TEST_CASE("nesting and numbers of values have limits") {
  const std::string open(70, '['), close(70, ']');
  CHECK(contains(message_for(R"({"x":)" + open + close + "}"), "expected at most 64 levels"));
  std::string many = R"({"x":[)";
  for (int i = 0; i < 1'000'001; ++i) many += "0,";
  CHECK(contains(message_for(many + "0]}"), "expected at most 1000000 values"));
}

TEST_CASE("added tokens have the ids that tokenizers gives them") {
  const auto with = [](std::string_view tokens) {
    return message_for(file_of(fmt::format(R"("added_tokens":[{}])", tokens)));
  };
  CHECK(with(R"({"id":3,"content":"c"},{"id":4,"content":"<s>"},{"id":5,"content":"</s>"})").empty());
  CHECK(with(R"({"id":3,"content":"a"})") ==
        "t.json: added_tokens[0].id: expected 0, as in model.vocab, found 3");
  CHECK(contains(with(R"({"id":7,"content":"<s>"})"),
                 "added_tokens[0].id: expected 4, as many as there are tokens before it, found 7"));
  CHECK(contains(with(R"({"id":4,"content":"<s>"},{"id":4,"content":"<s>"})"),
                 "added_tokens[1].content: expected every token once"));
  CHECK(contains(with(R"({"id":4,"content":""})"), "expected 1 to 256 bytes"));
  CHECK(contains(with(R"({"id":4194304,"content":"x"})"),
                 "added_tokens[0].id: expected a whole number up to 4194303"));
}

TEST_CASE("steps that make a text ever longer are stopped") {
  const auto with = [](std::string_view list, std::string_view step, size_t count) {
    std::string steps(step);
    for (size_t i = 1; i < count; ++i) steps.append(",").append(step);
    const char* key = list == "pre_tokenizer" ? "pretokenizers"
                      : list == "decoder"     ? "decoders"
                                              : "normalizers";
    return file_of(fmt::format(R"("{}":{{"type":"Sequence","{}":[{}]}})", list, key, steps));
  };
  const auto growth = [&](const std::string& file) {
    const Tokenizer tokenizer = Tokenizer::parse("t.json", file);
    return contains(
        message_of([&] { tokenizer.decode(tokenizer.encode(std::string(5000, 'a'), false), false); }),
        "expected at most 64 times the bytes of a text and 1048576 more, found");
  };
  const char* doubled = R"({"type":"Replace","pattern":{"String":"a"},"content":"aa"})";
  CHECK(growth(with("normalizer", doubled, 40)));
  CHECK(growth(with("decoder", doubled, 40)));
  CHECK(growth(with("normalizer",
                    fmt::format(R"({{"type":"Replace","pattern":{{"String":"a"}},"content":"{}"}})",
                                std::string(100'000, 'b')),
                    1)));
  const std::string file =
      with("pre_tokenizer", R"({"type":"ByteLevel","add_prefix_space":false,"use_regex":false})", 60);
  CHECK(contains(message_of([&] {
                   Tokenizer::parse("t.json", file).encode("\xC3\xA9" + std::string(5000, '\n'), false);
                 }),
                 "t.json: expected at most 64 times"));
  CHECK(contains(message_for(with("normalizer", R"({"type":"NFC"})", 65)),
                 "t.json: normalizer: expected 64 steps at most, found object"));
}

TEST_CASE("added tokens that take white space take each of it once, in little time") {
  const std::string file =
      file_of(R"("added_tokens":[{"id":4,"content":" ","lstrip":true,"rstrip":true,"normalized":false}])",
              R"("ignore_merges":true)");
  const Tokenizer tokenizer = Tokenizer::parse("t.json", file);
  CHECK(tokenizer.encode(std::string(2'000'000, ' ') + "a", false).size() == 2);
}

TEST_CASE("what is put around a text are tokens of the vocabulary") {
  const auto with = [](std::string_view single, std::string_view special) {
    return message_for(file_of(fmt::format(
        R"("post_processor":{{"type":"TemplateProcessing","single":[{}],"special_tokens":{{{}}}}})", single,
        special)));
  };
  const char* text = R"({"Sequence":{"id":"A","type_id":0}})";
  CHECK(with(text, "").empty());
  CHECK(contains(with("", ""), "post_processor.single: expected a Sequence"));
  CHECK(contains(with(fmt::format("{},{}", text, text), ""),
                 "post_processor.single[1]: expected one Sequence"));
  const std::string begin = fmt::format(R"({{"SpecialToken":{{"id":"<s>"}}}},{})", text);
  CHECK(contains(with(begin, ""), R"(expected a token of special_tokens, found "<s>")"));
  CHECK(with(begin, R"("<s>":{"ids":[3]})").empty());
  CHECK(contains(with(begin, R"("<s>":{"ids":[4]})"), "ids[0]: expected a whole number up to 3, found 4"));
  std::string many = "3";
  for (int i = 1; i < 1024; ++i) many += ",3";
  CHECK(with(begin, fmt::format(R"("<s>":{{"ids":[{}]}})", many)).empty());
  CHECK(contains(with(begin, fmt::format(R"("<s>":{{"ids":[{},3]}})", many)),
                 "post_processor.single[0].SpecialToken: expected at most 1024 ids beside a text"));
}

}  // namespace malformed_test
