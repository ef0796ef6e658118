// A checkpoint on a server reads as the one on the disk, whatever breaks, or is refused.
#include "lib/source/hub/remote_source.h"

#include <doctest/doctest.h>

#include <unistd.h>

#include <cstdio>

#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/hub/sha.h"
#include "tests/support/hub/hub_fixture.h"

namespace remote_source_test {

using namespace twofour;

namespace {

namespace fs = std::filesystem;

constexpr const char* kShard = "model-00002-of-00002.safetensors";

uint64_t bytes_sent(const std::vector<HubRequest>& requests) {
  uint64_t sum = 0;
  for (const HubRequest& r : requests) {
    unsigned long long first = 0, last = 0;
    if (r.to_storage && std::sscanf(r.request.field("range").c_str(), "bytes=%llu-%llu", &first, &last) == 2)
      sum += last - first + 1;
  }
  return sum;
}

}  // namespace

TEST_CASE("a path of this machine is left as it is") {
  const RemoteSource source("some/where");
  CHECK(!source.is_remote());
  CHECK(source.path() == "some/where");
}

TEST_CASE("a checkpoint of the Hub opens by its headers, and every byte of it can be read") {
  HubFixture f;
  fs::path folder;
  {
    const RemoteSource remote("hf://org/name", std::nullopt, kQuick);
    folder = remote.path();
    const auto after_opening = f.server->requests();
    CHECK(bytes_sent(after_opening) <= 2 * (256u << 10));  // of two files of 700 kB
    const Checkpoint checkpoint = Checkpoint::open(folder), local = Checkpoint::open(f.source());
    REQUIRE(checkpoint.tensors().size() == 3);
    CHECK(checkpoint.shards()[1].header_hash == local.shards()[1].header_hash);
    CHECK(bytes_sent(f.server->requests()) == bytes_sent(after_opening));  // nothing more for the headers
    check_same(f.source(), folder);
    CHECK(remote_name(folder / "config.json") ==
          std::string("hf://org/name@") + HubServer::kCommit + "/config.json");
    CHECK(with_remote_names(folder.string() + "/x: bad") ==
          std::string("hf://org/name@") + HubServer::kCommit + "/x: bad");
  }
  CHECK(!fs::exists(folder));
}

TEST_CASE("the next run removes the folder of one that was killed, and no other, nor that of another user") {
  HubFixture f;
  const Variable temporary("TMPDIR", (f.scratch / "temporary").string());
  const auto make = [&](const std::string& name, bool is_old) {
    const fs::path folder = f.scratch / "temporary" / name;
    fs::create_directories(folder / "model");
    if (is_old) fs::last_write_time(folder, fs::file_time_type::clock::now() - std::chrono::hours(1));
    return folder;
  };
  const fs::path killed = make("twofour-remote-killed", true), young = make("twofour-remote-young", false),
                 other = make("other", true), foreign = make("twofour-remote-foreign", true);
  const bool is_foreign = ::chown(foreign.c_str(), 12345, static_cast<gid_t>(-1)) == 0;  // as root
  const RemoteSource first("hf://org/name", std::nullopt, kQuick);
  fs::last_write_time(first.path(), fs::file_time_type::clock::now() - std::chrono::hours(1));
  const RemoteSource second("hf://org/name", std::nullopt, kQuick);
  CHECK(!fs::exists(killed));
  CHECK(fs::exists(young));
  CHECK(fs::exists(other));
  CHECK(fs::exists(foreign) == is_foreign);
  check_same(f.source(), first.path());
}

TEST_CASE("the revision is asked for once, and all files by its commit") {
  HubFixture f;
  const RemoteSource remote("hf://org/name@main", std::nullopt, kQuick);
  check_same(f.source(), remote.path());
  size_t lists = 0;
  for (const HubRequest& r : f.server->requests()) {
    lists += r.request.path.starts_with("/api/");
    if (at_resolve(r)) contains(r.request.path, HubServer::kCommit);
  }
  CHECK(lists == 1);
}

TEST_CASE("revisions with slashes and files of a folder are found") {
  HubFixture f;
  const std::string slashes =
      message_of([] { RemoteSource("hf://org/name@refs/pr/1", std::nullopt, kQuick); });
  CHECK(slashes.empty());
  const RemoteSource file(std::string("hf://org/name/") + kShard, std::nullopt, kQuick);
  CHECK(file.path().filename() == kShard);
  CHECK(Checkpoint::open(file.path()).tensors().size() == 2);
  CHECK(Checkpoint::open(file.path()).config_of_values().is_object());
  contains(message_of_opening("hf://org/name/nothing"), "expected a folder or file of that name, found none");
}

TEST_CASE("the token goes to the endpoint and never to the storage behind a redirect") {
  HubFixture f;
  f.server->demand("hf_secret");
  const std::string refused = message_of_opening();
  contains(refused, "hf://org/name@main: expected a repository that can be read, found none (401)");
  contains(refused, "set HF_TOKEN");
  const Variable token("HF_TOKEN", "hf_secret");
  const RemoteSource remote("hf://org/name", std::nullopt, kQuick);
  check_same(f.source(), remote.path());
  size_t stored = 0;
  f.server->forget_requests();
  const RemoteSource again("hf://org/name", std::nullopt, kQuick);
  for (const HubRequest& r : f.server->requests()) {
    CHECK(r.request.field("authorization") == (r.to_storage ? "" : "Bearer hf_secret"));
    stored += r.to_storage;
  }
  CHECK(stored > 0);
  const Variable wrong("HF_TOKEN", "hf_wrong");
  const std::string message = message_of_opening();
  contains(message, "the account of the token that is set cannot read it");
  CHECK(message.find("hf_wrong") == message.npos);
}

TEST_CASE("a gated repository's message says where its terms are") {
  HubFixture f;
  f.server->gate();
  const std::string message = message_of_opening();
  contains(message,
           "found a gated repository (403): accept its terms at " + f.server->endpoint() + "/org/name");
}

TEST_CASE("what is not there is one error") {
  HubFixture f;
  contains(message_of_opening("hf://org/other"),
           "hf://org/other@main: expected a repository that can be read");
  contains(message_of_opening("hf://org/name@v9"),
           "expected a branch, tag or commit of that name, found none");
  f.fail(1000, at_resolve,
         [](const ServerAnswer&) { return with_status(404, "X-Error-Code: EntryNotFound"); });
  contains(message_of_opening(), "expected a file, found none");
}

TEST_CASE("failures that pass are repeated from the byte where they came, others are one error") {
  struct Case {
    const char* what;
    std::function<ServerAnswer(const ServerAnswer&)> answer;
    const char* error;  ///< where it lasts
  };
  const std::vector<Case> cases = {
      {"status 500", [](const ServerAnswer&) { return with_status(500); }, "found status 500 in 4 attempts"},
      {"status 503", [](const ServerAnswer&) { return with_status(503); }, "found status 503"},
      {"status 429", [](const ServerAnswer&) { return with_status(429, "Retry-After: 0"); },
       "found status 429"},
      {"broken connection",
       [](const ServerAnswer& usual) {
         ServerAnswer answer = usual;
         answer.announced = answer.body.size() + 1;
         answer.body.clear();
         answer.closes = true;
         return answer;
       },
       "in 4 attempts"},
      {"short range",
       [](const ServerAnswer& usual) {
         ServerAnswer answer = usual;
         answer.announced = answer.body.size();
         answer.body.resize(answer.body.size() / 2);
         answer.closes = true;
         return answer;
       },
       nullptr},
  };
  for (const Case& c : cases) {
    CAPTURE(c.what);
    for (const auto& where : {at_storage, at_resolve}) {
      HubFixture f;
      f.fail(3, where, c.answer);
      const RemoteSource remote("hf://org/name", std::nullopt, kQuick);
      check_same(f.source(), remote.path());
      f.fail(1 << 20, where, c.answer);
      if (c.error != nullptr) contains(message_of_opening(), c.error);
    }
  }
}

TEST_CASE("a hub whose storage trickles ends with a message that says so") {
  HubFixture f;
  f.fail(1000, at_storage, [](const ServerAnswer& usual) {
    ServerAnswer answer = usual;
    answer.announced = answer.body.size();
    answer.body.resize(4);
    answer.closes = true;
    return answer;
  });
  const std::string message = message_of_opening();
  contains(message, "model-0000");
  contains(message,
           "found a server that sends it in pieces of fewer than 65536 bytes and then fails, 12 times");
}

TEST_CASE("a server that asks to wait too long is an error") {
  HubFixture f;
  f.fail(1000, any, [](const ServerAnswer&) { return with_status(429, "Retry-After: 3600"); });
  contains(message_of_opening(), "asks to wait for 3600 s");
}

TEST_CASE("a server that waits as Retry-After says is waited for") {
  HubFixture f;
  f.fail(1, any, [](const ServerAnswer&) { return with_status(429, "Retry-After: 1"); });
  const auto before = std::chrono::steady_clock::now();
  CHECK(message_of_opening().empty());
  CHECK(std::chrono::steady_clock::now() - before >= std::chrono::seconds(1));
}

TEST_CASE("answers of a wrong length or place are refused") {
  const auto with_range = [](const std::string& text) {
    return [text](const ServerAnswer& usual) {
      ServerAnswer answer = usual;
      std::erase_if(answer.fields, [](const std::string& f) { return f.starts_with("Content-Range"); });
      if (!text.empty()) answer.fields.push_back("Content-Range: " + text);
      return answer;
    };
  };
  struct Case {
    std::function<ServerAnswer(const ServerAnswer&)> answer;
    const char* error;
  };
  for (const Case& c : std::vector<Case>{
           {with_range(""), "found an answer with no range"},
           {with_range("bytes 5-9/100"), "expected bytes 0 to"},
           {with_range("bytes 0-262143/999"), "expected a size of"},
           {with_range("nonsense"), "nonsense"},
           {[](const ServerAnswer& usual) {
              ServerAnswer answer = usual;
              answer.body += "more";
              return answer;
            },
            "found more in the answer"},
           {[](const ServerAnswer&) { return with_status(416); }, "it changed since it was listed"}}) {
    HubFixture f;
    f.fail(1 << 20, at_storage, c.answer);
    contains(message_of_opening(), c.error);
  }
}

TEST_CASE("of a server that ignores ranges files read as they are") {
  HubFixture f;
  const auto whole = [&](const HubRequest& r, const ServerAnswer&) -> std::optional<ServerAnswer> {
    if (!r.to_storage) return std::nullopt;
    ServerRequest without = r.request;
    without.fields.erase("range");
    for (const char* name : {"model-00001-of-00002.safetensors", kShard}) {
      const auto bytes = bytes_of(f.source() / name);
      ServerAnswer answer = answer_range(without, std::string(bytes.begin(), bytes.end()));
      Sha256 hasher;
      hasher.update(bytes);
      if (r.request.path.ends_with(hasher.hex())) return answer;
    }
    return std::nullopt;
  };
  f.server->set_fault(whole);
  const RemoteSource remote("hf://org/name", std::nullopt, kQuick);
  check_same(f.source(), remote.path());
}

TEST_CASE("a file that changes after it was listed is refused") {
  HubFixture f;
  const RemoteSource remote("hf://org/name", std::nullopt, kQuick);
  const auto bytes = bytes_of(f.source() / "tokenizer.json");
  f.server->change("tokenizer.json", "[]");
  contains(message_of([&] { bytes_of(remote.path() / "tokenizer.json"); }), "expected ETag");
  f.server->change("config.json", "{\"model_type\": \"another\"}");
  contains(message_of([&] { bytes_of(remote.path() / "config.json"); }), "changed since it was listed");
  // At another commit than the list's.
  f.server->set_fault([](const HubRequest& r, const ServerAnswer& usual) -> std::optional<ServerAnswer> {
    if (!at_resolve(r)) return std::nullopt;
    ServerAnswer answer = usual;
    answer.fields = {"X-Repo-Commit: ffffffffffffffffffffffffffffffffffffffff"};
    return answer;
  });
  contains(message_of([&] { bytes_of(remote.path() / "model.safetensors.index.json"); }), "expected commit");
}

// Status, size, ETag and commit are all as they were: only the hash tells.
TEST_CASE("bytes that a server or a proxy spoils are refused by the hash of the list") {
  for (const auto& [name, hash] : {std::pair{"config.json", "expected git's SHA-1 "},
                                   {"tokenizer.json", "expected git's SHA-1 "},
                                   {"model.safetensors.index.json", "expected git's SHA-1 "},
                                   {kShard, "expected SHA-256 "}}) {
    HubFixture f;
    const std::string file = name;
    const RemoteSource remote("hf://org/name", std::nullopt, kQuick);
    const auto spoil = [&](const HubRequest& r, const ServerAnswer& usual) -> std::optional<ServerAnswer> {
      const bool is_meant = file == kShard ? r.to_storage : r.request.path.ends_with("/" + file);
      ServerAnswer answer = usual;
      if (!is_meant || answer.body.empty()) return std::nullopt;
      answer.body.back() ^= 1;
      return answer;
    };
    f.server->set_fault(spoil);
    for (int again = 0; again < 2; ++again) {
      const std::string message = message_of([&] { bytes_of(remote.path() / file); });
      contains(message, hash);
      contains(message, file + ": ");
    }
    CHECK_THROWS_AS(bytes_of(remote.path() / file), ReadError);  // no damage of the file
    f.server->set_fault(nullptr);
    CHECK(bytes_of(remote.path() / file) == bytes_of(f.source() / file));
  }
}

TEST_CASE("an ETag that changes at the storage between two ranges is refused") {
  HubFixture f;
  const RemoteSource remote("hf://org/name", std::nullopt, kQuick);
  f.fail(1 << 20, at_storage, [](const ServerAnswer& usual) {
    ServerAnswer answer = usual;
    for (std::string& field : answer.fields) {
      if (field.starts_with("ETag")) field = "ETag: \"another\"";
    }
    return answer;
  });
  contains(message_of([&] { bytes_of(remote.path() / kShard); }), "it changed since it was listed");
}

TEST_CASE("a signed URL that is over is asked for again") {
  HubFixture f;
  const RemoteSource remote("hf://org/name", std::nullopt, kQuick);
  f.fail(1, at_storage, [](const ServerAnswer&) { return with_status(403); });
  check_same(f.source(), remote.path());
}

TEST_CASE("a URL that libcurl does not take is refused at once") {
  const HubFixture f;
  const RetryPolicy slow{2, std::chrono::hours(1)};
  for (const char* bad : {"http://127.0.0.1:99999/x/", "http://[::1/x/"})
    contains(message_of([&] { const RemoteSource remote(bad, std::nullopt, slow); }),
             "expected a URL that libcurl accepts, found another");
}

TEST_CASE("redirects that go on are refused") {
  HubFixture f;
  f.server->set_fault([&](const HubRequest& r, const ServerAnswer&) -> std::optional<ServerAnswer> {
    if (!at_resolve(r)) return std::nullopt;
    return with_status(307, "Location: " + r.request.path);
  });
  contains(message_of_opening(), "expected at most 5 redirects, found more");
  f.fail(1 << 20, at_resolve, [](const ServerAnswer&) { return with_status(302); });
  contains(message_of_opening(), f.server->endpoint() + "/org/name/resolve/");
  contains(message_of_opening(), "expected a field Location in a redirect, found none");
}

}  // namespace remote_source_test
