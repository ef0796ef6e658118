#include <doctest/doctest.h>
#include <fmt/format.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "formats/json.h"
#include "lib/base/io/file.h"
#include "lib/base/names/natural.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/models/prompt_model.h"
#include "tests/support/outcome.h"
#include "tests/support/scratch.h"
#include "tests/support/terminal.h"
#include "tools/console/progress_line.h"

/// Actions of people at the prompt, and the expected answers.

namespace cli_prompt_test {

using namespace twofour;
namespace fs = std::filesystem;

namespace {

const std::string kGolden = std::string(TWOFOUR_GOLDEN_DIR) + "/modelopt-qwen3/src";

size_t count_of(const std::string& text, const std::string& part) {
  size_t count = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++count;
  return count;
}

}  // namespace

TEST_CASE("twofour alone lists the commands in groups, in the order of use, and ends with 2") {
  const Outcome o = run_program({});
  CHECK(o.code == 2);
  CHECK(o.out.empty());
  size_t before = 0;
  for (const char* part : {"expected a command, found none", "Look at a checkpoint:", "\n  lint ",
                           "Make another", "\n  convert ", "Prove", "\n  validate ", "\n  synth "}) {
    const size_t at = o.err.find(part);
    CHECK_MESSAGE(at != o.err.npos, part);
    CHECK(at >= before);
    before = at;
  }
  CHECK(run_program({"help"}).out == o.err.substr(o.err.find("\n\n") + 2));
}

TEST_CASE("--help is short and begins with examples; --help-all has every option with its words") {
  for (const std::string command : {"convert", "quantize", "plan", "compress", "eval"}) {
    CAPTURE(command);
    const std::string brief = run_program({command, "--help"}).out,
                      all = run_program({command, "--help-all"}).out;
    CHECK(std::count(brief.begin(), brief.end(), '\n') < 75);
    CHECK(brief.size() < all.size());
    CHECK(brief.find("Example") < brief.find("Arguments:"));
    // No option is missing in the short help: the rest is named there.
    std::istringstream lines(all);
    for (std::string line; std::getline(lines, line);) {
      const size_t at = line.find("--");
      if (at == line.npos || line.find_first_not_of(' ') > 3 || line[2] != '-') continue;
      const std::string option = line.substr(at, line.find_first_of(" ", at) - at);
      CHECK_MESSAGE(brief.find(option) != brief.npos, option);
    }
  }
  const std::string convert = run_program({"convert", "--help"}).out;
  CHECK(convert.find("\n  --to ") < convert.find("\n  --include "));
  CHECK(convert.find("--to writes:") != convert.npos);
  CHECK(count_of(convert, "\n  twofour convert ") >= 3);
}

TEST_CASE("options may precede the command") {
  const std::string json = run_program({"inspect", kGolden, "--json"}).out;
  CHECK(run_program({"--json", "inspect", kGolden}).out == json);
  CHECK(run_program({"-j", "2", "--json", "inspect", kGolden}).out == json);
  CHECK(run_program({"-v", "inspect", kGolden}).out == run_program({"inspect", kGolden, "-v"}).out);
  CHECK(run_program({"--help", "lint"}).out == run_program({"lint", "--help"}).out);
  CHECK(run_program({"-v", "lnt", kGolden}).err.find("unknown command 'lnt'; did you mean lint?") == 9);
  CHECK(run_program({"--json"}).out.find("expected a command, found none") != std::string::npos);
  CHECK(run_program({"--no-such-thing", "lint"}).err.find("unknown option --no-such-thing") == 9);
}

TEST_CASE("eval -q prints its result") {
  const PromptModel model;
  const Outcome o =
      run_program({"eval", model.at("model"), "--text", model.at("text"), "--context", "16", "-q"});
  CHECK(o.code == 0);
  CHECK(o.err.empty());
  CHECK(o.out.find(": perplexity ") != std::string::npos);
  CHECK(count_of(o.out, "\n") == 1);
}

TEST_CASE("a path that is not there gets a question: a name that is alike, or a model on the Hub") {
  const Scratch scratch;
  fs::create_directory(scratch / "checkpoint");
  check_one_line(run_program({"inspect", (scratch / "chekpoint").string()}),
                 "no such file or directory; did you mean checkpoint?");
  for (const char* command : {"inspect", "lint", "convert"}) {
    std::vector<std::string> words = {command, "some-org/some-model"};
    if (words[0] == "convert") words.insert(words.end(), {(scratch / "out").string(), "--to", "v7"});
    check_one_line(run_program(words), "no such file or directory; hf://some-org/some-model?\n");
  }
  const std::string far = run_program({"inspect", (scratch / "a/b").string()}).err;
  CHECK(far.find("hf://") == far.npos);
}

TEST_CASE("an index or config.json stands for its directory") {
  const PromptModel model;
  const std::string config = model.at("model") + "/config.json";
  CHECK(run_program({"inspect", config}).out == run_program({"inspect", model.at("model")}).out);
  const auto without_speed = [](const std::string& out) { return out.substr(0, out.rfind(" read at ")); };
  CHECK(without_speed(run_program({"lint", config}).out) ==
        without_speed(run_program({"lint", model.at("model")}).out));
  CHECK(run_program({"quantize", config, model.at("out"), "-q"}).code == 0);
  CHECK(run_program({"validate", model.at("out"), "--source", config}).code == 0);
  const std::string index = model.at("out") + "/model.safetensors.index.json";
  CHECK(run_program({"inspect", index}).out == run_program({"inspect", model.at("out")}).out);
  CHECK(run_program({"diff", index, config}).code == 1);
  CHECK(run_program({"eval", config, "--text", model.at("text"), "--limit", "1", "-q"}).code == 0);
}

TEST_CASE("a directory without safetensors says what it holds") {
  const Scratch scratch;
  const auto says = [&](const char* folder, const std::string& part) {
    for (const char* command : {"inspect", "lint"})
      check_one_line(run_program({command, (scratch / folder).string()}), part);
  };
  for (const char* folder :
       {"gguf", "torch", "cache/models--a--b/snapshots/1234/", "cache/models--a--b/snapshots/abcd",
        "cache/models--a--b/refs", "above/below", "nothing"})
    fs::create_directories(scratch / folder);
  write_text(scratch / "gguf" / "model-Q4.gguf", "GGUF");
  write_text(scratch / "torch" / "pytorch_model-00001-of-00002.bin", "PK");
  write_text(scratch / "torch" / "pytorch_model-00002-of-00002.bin", "PK");
  write_text(scratch / "cache/models--a--b/refs/main", "abcd");
  write_safetensors(scratch / "above/below/model.safetensors", {{"a", DType::kF32, {1}, {0, 0, 0, 0}}});
  says("gguf", "found 1 file of GGUF (model-Q4.gguf): take the checkpoint that it was made from");
  says("torch",
       "found 2 files of PyTorch (pytorch_model-00001-of-00002.bin, ...): convert it to safetensors");
  says("cache/models--a--b", "snapshots/abcd, of 2 snapshots: 1234, abcd");
  says("cache", "found none; it is a Hub's cache of 1 model: take ");
  says("above", "found none; some are in ");
  says("nothing", "expected *.safetensors files, found none\n");
}

TEST_CASE("a directory that a killed run left is named by every command, with what to do") {
  const Scratch scratch;
  fs::create_directories(scratch / "killed");
  write_text(scratch / "killed/.twofour-unfinished", "");
  const std::string killed = (scratch / "killed").string(), other = (scratch / "other").string();
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"lint", killed},
                                             {"inspect", killed},
                                             {"validate", killed},
                                             {"card", killed},
                                             {"diff", killed, killed},
                                             {"repair", killed, other},
                                             {"convert", killed, other, "--to", "v7"}}) {
    CAPTURE(words[0]);
    check_one_line(
        run_program(words),
        "found one that an interrupted run of twofour left (.twofour-unfinished); finish it by the same "
        "command with --resume, or write it again\n");
  }
}

TEST_CASE("an engine's name in place of a dialect is answered with the dialects that it reads") {
  const PromptModel model;
  for (const char* command : {"quantize", "convert"}) {
    const Outcome o = run_program({command, model.at("model"), model.at("out"), "--dialect", "vllm"});
    CHECK_MESSAGE(
        o.err.find("found 'vllm'; vLLM is an engine, which reads modelopt and compressed-tensors\n") !=
            o.err.npos,
        o.err);
  }
}

TEST_CASE("a file that is no safetensors is named by what it is") {
  const Scratch scratch;
  write_text(scratch / "passwd", "root:x:0:0:root:/root:/bin/bash\n");
  check_one_line(run_program({"inspect", (scratch / "passwd").string()}),
                 "expected a safetensors file, found text");
  write_text(scratch / "binary", std::string("\x7F"
                                             "ELF\x02\x01\x01\x03",
                                             8) +
                                     std::string(64, '\x07'));
  check_one_line(run_program({"inspect", (scratch / "binary").string()}),
                 "found one that begins with other bytes (7f 45 4c 46 02 01 01 03)");
}

TEST_CASE("a source without config.json is refused, unless --without-config") {
  const PromptModel model;
  const std::string bare = model.at("bare"), out = model.at("out"), nvfp4 = model.at("nvfp4");
  REQUIRE(run_program({"quantize", model.at("model"), nvfp4, "-q"}).code == 0);
  for (const char* name : {"bare", "bare-nvfp4"}) {
    fs::create_directory(model.scratch / name);
    const fs::path from = model.scratch / (std::string(name) == "bare" ? "model" : "nvfp4");
    for (const auto& entry : fs::directory_iterator(from)) {
      if (entry.path().extension() == ".safetensors")
        fs::copy(entry.path(), model.scratch / name / entry.path().filename());
    }
  }
  const std::vector<std::vector<std::string>> acts = {
      {"convert", model.at("bare-nvfp4"), out, "--to", "bf16"},
      {"quantize", bare, out},
      {"prune", model.at("bare-nvfp4"), out},
      {"drop", bare, out, "--modules", "head"},
      {"graft", bare, model.at("model"), out, "--take", "head"},
      {"plan", bare, out, "--to", "quantize", "-o", model.at("plan.json")}};
  for (std::vector<std::string> words : acts) {
    CAPTURE(words[0]);
    check_one_line(run_program(words), "expected config.json beside the weights");
    CHECK(!fs::exists(out));
    words.push_back("--without-config");
    const std::string again = run_program(words).err;
    CHECK_MESSAGE(again.find("expected config.json beside the weights") == again.npos, again);
    fs::remove_all(out);
  }
  // compress runs the model, which has no shape without its config.
  const Outcome compressed =
      run_program({"compress", bare, out, "--text", model.at("text"), "--to", "nvfp4"});
  CHECK(compressed.code == 2);
  CHECK_MESSAGE(compressed.err.find("config.json") != std::string::npos, compressed.err);
}

TEST_CASE("a single file takes config and tokenizer beside it if it is the only shard, and says so") {
  const PromptModel model;
  std::string file;
  for (const auto& entry : fs::directory_iterator(model.scratch / "model")) {
    if (entry.path().extension() == ".safetensors") file = entry.path().string();
  }
  const Outcome o = run_program({"quantize", file, model.at("out")});
  CHECK(o.code == 0);
  CHECK(o.err.find("the only weight file there: taken with config.json") != std::string::npos);
  CHECK(fs::exists(model.scratch / "out" / "tokenizer.json"));
  const Json config = parse_json("config", read_text(model.scratch / "out" / "config.json"));
  CHECK(config.contains("hidden_size"));
  CHECK(run_program({"validate", model.at("out"), "--source", file}).code == 0);
  fs::copy(file, model.scratch / "model" / "other.safetensors");
  check_one_line(run_program({"quantize", file, model.at("out2")}),
                 "found a single file; take its directory");
}

TEST_CASE("--dry-run answers first, folds names in natural order, and compares with the free space") {
  const Scratch scratch;
  const std::string source = (scratch / "source").string(), out = (scratch / "out").string();
  REQUIRE(run_program({"synth", source, "--shape", "qwen3-moe", "--small", "--layers", "12", "-q"}).code ==
          0);
  const Outcome o = run_program({"convert", source, out, "--to", "v7", "--dry-run"});
  CHECK(o.code == 0);
  CHECK(o.out.starts_with("would read "));
  CHECK(o.out.find("\n" + out + ": ") != std::string::npos);
  CHECK(o.out.find(" free, which is enough\n") != std::string::npos);
  CHECK(o.out.find("model.layers.0-11.mlp.experts.w13_comp  12 x U8 [") != std::string::npos);
  CHECK(count_of(o.out, "\n") < 60);
  CHECK(o.out.find(".w2_comp") < o.out.find(".w13_comp"));  // natural order
  // JSON has each tensor.
  const Json json = json_of(run_program({"convert", source, out, "--to", "v7", "--dry-run", "--json"}));
  CHECK(json["tensors"].size() > 60);
}

TEST_CASE("documents and differences list layer 2 before layer 10") {
  const Scratch scratch;
  const std::string source = (scratch / "source").string(), floats = (scratch / "floats").string(),
                    out = (scratch / "out").string();
  REQUIRE(run_program({"synth", source, "--shape", "qwen3-moe", "--small", "--layers", "12", "-q"}).code ==
          0);
  REQUIRE(run_program({"convert", source, floats, "--to", "bf16", "-q"}).code == 0);
  REQUIRE(run_program({"quantize", floats, out, "-q"}).code == 0);
  const auto check = [](const Json& list, const char* key, const std::string& end) {
    std::vector<std::string> layers, ordered;
    for (const Json& one : list)
      if (const auto name = one[key].get<std::string>(); name.ends_with(end)) layers.push_back(name);
    ordered = layers;
    std::sort(ordered.begin(), ordered.end(), natural_less);
    CHECK(layers.size() == 12);
    CHECK((layers == ordered));
  };
  const Outcome dry =
      run_program({"convert", source, (scratch / "v7").string(), "--to", "v7", "--dry-run", "--json"});
  check(parse_json("stdout", dry.out)["tensors"], "name", "input_layernorm.weight");
  const Outcome wrong = run_program({"validate", out, "--source", source, "--json"});
  check(parse_json("stdout", wrong.out)["differences"], "where", "o_proj.input_scale");
}

TEST_CASE("--dry-run says how much space is too little") {
  const Scratch scratch;
  const std::string source = (scratch / "source").string(), out = (scratch / "out").string();
  REQUIRE(
      run_program({"synth", source, "--shape", "qwen3.8-2.4t-a95b", "--layers", "8", "--headers-only", "-q"})
          .code == 0);
  const Json json = json_of(run_program({"convert", source, out, "--to", "v7", "--dry-run", "--json"}));
  const bool is_enough = fs::space(scratch.path).available > json["bytes_written"].get<uint64_t>();
  const std::string text = run_program({"convert", source, out, "--to", "v7", "--dry-run"}).out;
  CHECK((text.find(" too little\n") == text.npos) == is_enough);
  CHECK((text.find(" free, which is enough\n") != text.npos) == is_enough);
}

TEST_CASE("generate prints tokens as they come") {
  const PromptModel model;
  const std::string command = fmt::format("{} generate {} --prompt HELLO --max-tokens 40 -q -j 1 2>/dev/null",
                                          fmt::join(program_words(), " "), model.at("model"));
  FILE* pipe = ::popen(command.c_str(), "r");
  REQUIRE(pipe != nullptr);
  std::string text;
  char buffer[4096];
  int pieces = 0;
  for (ssize_t got = 0; (got = ::read(::fileno(pipe), buffer, sizeof buffer)) > 0; ++pieces)
    text.append(buffer, static_cast<size_t>(got));
  CHECK(::pclose(pipe) == 0);
  CHECK(pieces > 1);
  const Json json = json_of(run_program(
      {"generate", model.at("model"), "--prompt", "HELLO", "--max-tokens", "40", "--json", "-j", "1"}));
  CHECK(text == json["text"].get<std::string>() + "\n");
}

TEST_CASE("a progress line has layer, part, tokens, rate and time left, and fits the terminal") {
  const ShownProgress run{"collecting", 30, 100, 4, 30, "gate/up", 512, 2048};
  CHECK(progress_line(run, 12, 100) ==
        "collecting   30 %  layer 4 of 30  gate/up  512 of 2048 tokens  51.2 tokens/s  28 s left");
  CHECK(progress_line(run, 12, 39) == " 30 %  layer 4 of 30  28 s left");
  CHECK(progress_line(run, 36'000, 39).ends_with("23 h 20 min left"));
  const ShownProgress bytes{"converting", 30'000'000, 100'000'000};
  CHECK(progress_line(bytes, 10, 100) == "converting   30 %  30 MB of 100 MB  0.00 GB/s  23 s left");
  for (size_t columns = 1; columns < 100; ++columns) {
    CHECK(progress_line(run, 12, columns).size() <= columns);
    CHECK(progress_line(bytes, 10, columns).size() <= columns);
  }
}

TEST_CASE("lines fit a terminal of 40 columns, and TERM=dumb gets no control sequences") {
  const auto check_widths = [](const std::string& text, size_t columns) {
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
      while (!line.empty() && line.back() == '\r') line.pop_back();
      const bool has_words = line.find(' ', line.find_first_not_of(' ')) != line.npos;
      CHECK_MESSAGE((line.size() <= columns || !has_words), line);
    }
  };
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"help"}, {"stats", "--help"}, {"validate", "--help-all"}, {"lint", "--help"}})
    check_widths(on_terminal(words, {"TERM=xterm"}, 40), 40);

  const Scratch scratch;
  const auto synth = [&](const char* name) {
    return std::vector<std::string>{
        "synth", (scratch / name).string(), "--shape", "qwen3-next", "--layers", "1", "--experts", "24", "-j",
        "1"};
  };
  const auto convert = [&](const char* to) {
    return std::vector<std::string>{
        "convert", (scratch / "source").string(), (scratch / to).string(), "--to", "v7", "-j", "1"};
  };
  REQUIRE(run_program(synth("source")).code == 0);
  const std::string narrow = on_terminal(convert("a"), {"TERM=xterm"}, 40);
  REQUIRE(narrow.find("\r\033[K") != std::string::npos);
  for (size_t at = narrow.find("\r\033[K"); at != narrow.npos; at = narrow.find("\r\033[K", at + 1)) {
    const std::string line = narrow.substr(at + 4, narrow.find_first_of("\r\n", at + 4) - at - 4);
    if (line.find('%') != line.npos && line.find('.') > line.find('%')) CHECK_MESSAGE(line.size() < 40, line);
  }
  CHECK(on_terminal(convert("b"), {"TERM=dumb"}, 80).find('\033') == std::string::npos);
}

}  // namespace cli_prompt_test
