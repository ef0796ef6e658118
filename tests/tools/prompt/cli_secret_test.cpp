// What a URL keeps secret, its query, user and password, is in nothing that any command prints or writes.
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include "lib/base/io/file.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/hub/http_server.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/models/letter_tokenizer.h"
#include "tests/support/outcome.h"
#include "tests/support/scratch.h"

namespace cli_secret_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

constexpr const char* kSecret = "SECRET0123456789abcdef";

/// A command as the program's own Markdown lists it.
struct CommandWords {
  std::string name;
  std::vector<std::string> positionals;  ///< names
  std::vector<std::string> options;      ///< "--stats", of those that take a value
};

/// The names between the first backticks of an item of a list: "- `-o, --output FILE`: File to write".
std::string first_cell(const std::string& line) {
  const size_t end = line.find('`', 3);
  return line.starts_with("- `") && end != line.npos ? line.substr(3, end - 3) : "";
}

/// "--output" of "-o, --output FILE"; "" of a flag.
std::string option_with_value(const std::string& cell) {
  const size_t value = cell.rfind(' ');
  if (value == cell.npos || cell[value + 1] == '-') return "";
  const size_t comma = cell.find(", ");
  const std::string names = cell.substr(0, value);
  return comma < value ? names.substr(comma + 2) : names;
}

/// Options with a value of an item that names those of a group: "- [Writing](#writing): `--io`, `--force`".
std::vector<std::string> options_of_group(const std::string& line, const std::set<std::string>& with_value) {
  std::vector<std::string> found;
  for (size_t at = line.find('`'); at != line.npos;) {
    const size_t end = line.find('`', at + 1);
    const std::string name = line.substr(at + 1, end - at - 1);
    if (with_value.contains(name)) found.push_back(name);
    at = line.find('`', end + 1);
  }
  return found;
}

std::vector<CommandWords> commands() {
  std::istringstream lines(run_program({"help", "--markdown"}).out);
  std::vector<CommandWords> found;
  std::set<std::string> of_groups;
  std::vector<std::string> of_all;
  bool in_groups = false, is_listed = false;
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("## ")) in_groups = line == "## Options of several commands";
    // Arguments are the first list of a command.
    if (line.starts_with("## ")) is_listed = false;
    if (line.starts_with("## ") && !in_groups) found.push_back({line.substr(3), {}, of_all});
    const std::string cell = first_cell(line), option = option_with_value(cell);
    if (in_groups) {
      if (!option.empty()) of_groups.insert(option);
    } else if (found.empty()) {
      if (!option.empty()) of_all.push_back(option);
    } else if (is_listed) {
      continue;
    } else if (line.starts_with("- [")) {
      const std::vector<std::string> more = options_of_group(line, of_groups);
      found.back().options.insert(found.back().options.end(), more.begin(), more.end());
    } else if (cell.starts_with('-')) {
      if (!option.empty()) found.back().options.push_back(option);
    } else if (!cell.empty()) {
      found.back().positionals.push_back(cell);
    } else if (line.empty()) {
      is_listed = !found.back().positionals.empty() || found.back().options.size() > of_all.size();
    }
  }
  return found;
}

/// A checkpoint here and the same behind a URL that needs a signature, on the server that is the endpoint,
/// so that http:// is allowed.
struct SecretFixture {
  SecretFixture() {
    write_decoder_checkpoint(read_decoder_golden(fs::path(TWOFOUR_GOLDEN_DIR) / "decoder", "qwen3_moe"),
                             scratch / "source");
    std::ofstream(scratch / "source" / "tokenizer.json") << letter_tokenizer();
    const Outcome made = run_program({"convert", path("source"), path("v7"), "--to", "v7", "-q"});
    REQUIRE_MESSAGE(made.code == 0, made.err);
    fs::create_directory(scratch / "temporary");
    const InputFile weights(scratch / "source" / "model.safetensors");
    body.resize(weights.size());
    weights.read(0, {reinterpret_cast<uint8_t*>(body.data()), body.size()});
    server.emplace([this](const ServerRequest& r) { return answer(r); });
  }
  ServerAnswer answer(const ServerRequest& r) const {
    if (r.path == "/files/model.safetensors" && r.query == std::string("X-Amz-Signature=") + kSecret) {
      ++reads;
      ServerAnswer found = answer_range(r, body);
      found.fields.push_back("ETag: \"x\"");
      return found;
    }
    ServerAnswer refused;
    refused.status = 403;
    refused.fields.push_back("X-Error-Message: " + r.path + " is signed by " + r.query);
    return refused;
  }
  std::string url() const { return server->origin() + "/files/model.safetensors?X-Amz-Signature=" + kSecret; }
  std::string path(const std::string& name) const { return (scratch / name).string(); }

  /// Runs the program in a folder of its own and looks for the secret in all that comes of it.
  Outcome run(const std::vector<std::string>& words) const {
    const Outcome o = run_program(
        words, {"HF_ENDPOINT=" + server->origin() + "/hub", "HF_TOKEN=", "HF_HUB_DISABLE_IMPLICIT_TOKEN=1",
                "no_proxy=127.0.0.1", "XDG_CACHE_HOME=" + path("cache"), "TMPDIR=" + path("temporary")});
    ++runs;
    std::string line;
    for (const std::string& word : words) line += word + " ";
    CHECK_MESSAGE(o.out.find(kSecret) == std::string::npos, line << "\n" << o.out);
    CHECK_MESSAGE(o.err.find(kSecret) == std::string::npos, line << "\n" << o.err);
    CHECK_MESSAGE(o.code != 128 + 11, line);
    for (const auto& [name, size] : files_below(scratch.path)) {
      CHECK_MESSAGE(name.find(kSecret) == std::string::npos, line << name);
      if (name.starts_with("source/") || name.starts_with("v7/")) continue;
      std::ostringstream text;
      text << std::ifstream(scratch / name, std::ios::binary).rdbuf();
      CHECK_MESSAGE(text.str().find(kSecret) == std::string::npos, line << name);
    }
    return o;
  }
  /// Removes what runs wrote.
  void tidy() const {
    for (const auto& entry : fs::directory_iterator(scratch.path)) {
      const std::string name = entry.path().filename().string();
      if (name != "source" && name != "v7" && name != "temporary") fs::remove_all(entry.path());
    }
  }

  Scratch scratch;
  std::string body;
  mutable std::atomic<int> reads{0};
  mutable int runs = 0;
  std::optional<HttpServer> server;
};

/// A line with one of its values replaced: the others are paths that are there, or are to be written.
std::vector<std::string> line_with(const SecretFixture& f, const CommandWords& command, size_t positional,
                                   const std::string& value) {
  std::vector<std::string> words = {command.name};
  for (size_t i = 0; i < command.positionals.size(); ++i) {
    const std::string& name = command.positionals[i];
    words.push_back(i == positional                             ? value
                    : name == "ACTION"                          ? "inspect"
                    : command.name == "run"                     ? f.path("v7")
                    : name == "OUT" || (name == "DST" && i > 0) ? f.path("out")
                                                                : f.path("source"));
  }
  return words;
}

}  // namespace

TEST_CASE("no argument of any command shows what a URL keeps secret") {
  const SecretFixture f;
  const fs::path before = fs::current_path();
  fs::current_path(f.path("temporary"));
  const std::string login = std::string("https://user:") + kSecret + "@127.0.0.1:1/m.safetensors";
  const std::string other = std::string("s3://bucket/m.safetensors?X-Amz-Signature=") + kSecret;
  const std::vector<CommandWords> all = commands();
  REQUIRE(all.size() > 20);
  constexpr size_t kNone = 1000;
  for (const CommandWords& command : all) {
    for (size_t i = 0; i < command.positionals.size(); ++i) {
      for (const std::string& url : {f.url(), login, other, other + "#" + kSecret}) {
        std::vector<std::string> words = line_with(f, command, i, url);
        f.run(words);
        words.push_back("--json");
        f.run(words);
      }
      // Beside what the command needs none of.
      std::vector<std::string> more = line_with(f, command, i, f.url());
      more.push_back(f.url());
      f.run(more);
    }
    for (const std::string& option : command.options) {
      std::vector<std::string> words = line_with(f, command, kNone, "");
      words.insert(words.end(), {option, f.url()});
      f.run(words);
      words = line_with(f, command, kNone, "");
      words.insert(words.end(), {option + "=" + login, "--json"});
      f.run(words);
    }
    f.tidy();
  }
  f.run({f.url()});
  f.run({"--" + f.url()});
  f.run({"help", f.url()});
  fs::current_path(before);
  MESSAGE(f.runs << " runs");
  CHECK(f.runs > 500);
}

TEST_CASE("commands that read a URL, or all but do, show it without its query") {
  const SecretFixture f;
  const std::string url = f.url(), shown = f.server->origin() + "/files/model.safetensors";
  const auto done = [&](std::vector<std::string> words, int code = 0) {
    const int reads = f.reads;
    const Outcome o = f.run(words);
    CHECK_MESSAGE(o.code == code, words[0] << ": " << o.err);
    CHECK_MESSAGE(f.reads > reads, words[0]);
    return o;
  };
  CHECK(done({"inspect", url}).out.find(shown) != std::string::npos);
  done({"inspect", url, "--json"});
  done({"inspect", url, "--values", "model.norm.weight[0:2]"});
  CHECK(done({"lint", url, "--headers-only", "--html", f.path("lint.html"), "--json"}).out.find(shown) !=
        std::string::npos);
  CHECK(read_text(f.path("lint.html")).find(shown) != std::string::npos);
  done({"lint", url, "--headers-only"});
  done({"lint", url, "--headers-only", "--sarif"});
  done({"lint", url, "--headers-only", "--write-baseline", f.path("baseline.json")});
  const Json diff = parse_json("diff", done({"diff", url, f.path("source"), "--headers-only", "--json"}).out);
  CHECK(diff.at("a").at("path") == shown);
  done({"diff", f.path("source"), url, "--headers-only"});
  done({"convert", url, f.path("fp8"), "--to", "fp8", "-v", "--without-config"});
  CHECK(read_text(f.path("fp8/twofour.json")).find(shown) != std::string::npos);
  done({"quantize", url, f.path("quantized"), "--include", "re:.*self_attn.*", "--json", "--without-config"});
  done({"plan", url, f.path("planned"), "--to", "fp8", "-o", f.path("plan.json"), "-v", "--without-config"});
  done({"convert", url, f.path("dry"), "--to", "fp8", "--dry-run", "--json", "--without-config"});
  // What a server says of its refusal repeats the query.
  const std::string refused = f.server->origin() + "/files/other.safetensors?X-Amz-Signature=" + kSecret;
  const Outcome o = f.run({"inspect", refused});
  CHECK(o.code == 2);
  CHECK_MESSAGE(o.err.find("other.safetensors: expected its content, found status 403") != std::string::npos,
                o.err);
  // Two that only the query tells apart.
  const Outcome two = f.run({"diff", url, url + "0", "--headers-only"});
  CHECK(two.code == 2);
  CHECK_MESSAGE(two.err.find("found status 403") != std::string::npos, two.err);
}

TEST_CASE("a prompt that mentions a URL is read as it was typed") {
  const SecretFixture f;
  std::string tokenizer = letter_tokenizer();
  for (const auto& [letter, mark] :
       {std::pair{"\"a\":", "\":\":"}, {"\"b\":", "\"/\":"}, {"\"c\":", "\"?\":"}}) {
    const size_t at = tokenizer.find(letter);
    REQUIRE(at != std::string::npos);
    tokenizer.replace(at, std::string(letter).size(), mark);
  }
  std::ofstream(f.path("source/tokenizer.json")) << tokenizer;
  const Json json = json_of(
      run_program({"generate", f.path("source"), "--prompt", "A://BC?DE", "--max-tokens", "1", "--json"}));
  CHECK(json["prompt_tokens"] == 9);
}

TEST_CASE("no message has the secret of what is almost a URL, or of one in a file") {
  const Scratch scratch;
  const std::string secret = kSecret;
  write_text(scratch / "key.yaml", "format: 1\nhttps://h/x?sig=" + secret + ": 1\nrules: []\n");
  write_text(scratch / "value.yaml",
             "format: 1\nrules:\n  - match: \"*\"\n    to: https://u:" + secret + "@h/x\n");
  const std::string out = (scratch / "out").string();
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"inspect", "https:/h/x.safetensors?sig=" + secret},
           {"convert", "http:/h/x?sig=" + secret, out, "--to", "bf16"},
           {"convert", scratch.path.string(), out, "--recipe", (scratch / "key.yaml").string()},
           {"convert", scratch.path.string(), out, "--recipe", (scratch / "value.yaml").string()}}) {
    const Outcome o = run_program(words);
    CHECK(o.code == 2);
    CHECK_MESSAGE((o.out + o.err).find(secret) == std::string::npos, o.err);
  }
}

}  // namespace cli_secret_test
