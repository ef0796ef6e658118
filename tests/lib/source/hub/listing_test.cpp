#include "lib/source/hub/listing.h"

#include <doctest/doctest.h>

#include <set>

#include "lib/source/checkpoint/checkpoint.h"
#include "tests/support/hub/hub_fixture.h"

namespace listing_test {

using namespace twofour;

namespace fs = std::filesystem;

TEST_CASE("lists with names that leave the folder, without sizes or without a commit are refused") {
  const std::string commit = HubServer::kCommit;
  const auto file = [](const std::string& name) {
    return R"({"rfilename": ")" + name + R"(", "size": 3, "blobId": ")" + std::string(40, 'b') + "\"}";
  };
  struct Case {
    std::string sha, siblings, error;
  };
  for (const Case& c : std::vector<Case>{
           {commit, "[" + file("../x") + "]", "expected names of files"},
           {commit, "[" + file("/etc/x") + "]", "expected names of files"},
           {commit, "[" + file("a//b") + "]", "expected names of files"},
           {commit, "[" + file("a/./b") + "]", "expected names of files"},
           {commit, "[" + file("") + "]", "expected names of files"},
           {commit, "[" + file("a") + "," + file("a") + "]", "expected one file of each name"},
           {commit, "[" + file("a") + "," + file("a/b") + "]", "a"},
           {commit, R"([{"rfilename": "a"}])", "expected a size"},
           {commit, R"([{"rfilename": "a", "size": -1}])", "expected a size"},
           {commit, R"([{"rfilename": "a", "size": 4611686018427387904}])", "expected at most"},
           {commit, R"([{"rfilename": "a", "size": 18446744073709551615}])", "expected at most"},
           {commit, R"([{"rfilename": "a", "size": 1, "lfs": {"sha256": "xyz", "size": 1}}])",
            "expected a SHA-256"},
           {commit, R"([{"rfilename": "a", "size": 1, "blobId": "x"}])", "expected git's SHA-1 of 40 digits"},
           {commit, "{}", "expected a list"},
           {"main", "[]", "expected a commit of 40 digits"},
           {"", "[]", "expected a commit of 40 digits"}}) {
    HubFixture f;
    f.fail(
        1 << 20, [](const HubRequest& r) { return r.request.path.starts_with("/api/"); },
        [&](const ServerAnswer&) {
          ServerAnswer answer;
          answer.body = R"({"sha": ")" + c.sha + R"(", "siblings": )" + c.siblings + "}";
          return answer;
        });
    CAPTURE(c.siblings);
    contains(message_of_opening(), c.error);
  }
  HubFixture f;
  f.fail(1 << 20, any, [](const ServerAnswer&) {
    ServerAnswer answer;
    answer.body = "<!doctype html>";
    return answer;
  });
  CHECK(!message_of_opening().empty());
}

TEST_CASE("a folder on another server is read by its index, and each file by its ETag") {
  const HubFixture f;
  std::atomic<bool> changed{false};
  std::set<std::string> tokens;
  std::mutex mutex;
  const HttpServer other([&](const ServerRequest& request) {
    {
      const std::lock_guard lock(mutex);
      tokens.insert(request.field("authorization"));
    }
    const fs::path file = f.source() / request.path.substr(std::string("/models/x/").size());
    if (!fs::exists(file)) return with_status(404);
    const auto bytes = bytes_of(file);
    ServerAnswer answer = answer_range(request, std::string(bytes.begin(), bytes.end()));
    answer.fields.push_back(changed ? "ETag: \"new\"" : "ETag: \"old\"");
    return answer;
  });
  const Variable token("HF_TOKEN", "hf_secret");
  const RemoteSource remote(other.origin() + "/models/x", std::nullopt, kQuick);
  check_same(f.source(), remote.path());
  CHECK(tokens == std::set<std::string>{""});
  const RemoteSource file(other.origin() + "/models/x/" + "model-00002-of-00002.safetensors" + "?sig=secret",
                          std::nullopt, kQuick);
  CHECK(Checkpoint::open(file.path()).tensors().size() == 2);
  CHECK(remote_name(file.path()) == other.origin() + "/models/x/" + "model-00002-of-00002.safetensors");
  CHECK(Checkpoint::open(file.path()).config_of_values().is_null());  // the query is for the file alone
  const RemoteSource alone(other.origin() + "/models/x/model-00002-of-00002.safetensors", std::nullopt,
                           kQuick);
  CHECK(Checkpoint::open(alone.path()).config_of_values().is_object());
  changed = true;
  contains(message_of([&] { bytes_of(file.path()); }), "expected ETag \"old\", found \"new\"");
  contains(message_of_opening(other.origin() + "/models/x/none.safetensors"), "expected a file, found none");
}

TEST_CASE("storage that refuses what is not there has the rest") {
  const HubFixture f;
  const auto serve = [&](int absent) {
    return HttpServer::Handler([&, absent](const ServerRequest& request) {
      const fs::path file = f.source() / request.path.substr(3);
      if (!fs::exists(file)) return with_status(absent);
      const auto bytes = bytes_of(file);
      return answer_range(request, std::string(bytes.begin(), bytes.end()));
    });
  };
  const HttpServer forbids(serve(403));
  const RemoteSource remote(forbids.origin() + "/m/", std::nullopt, kQuick);
  check_same(f.source(), remote.path());
  fs::remove(f.source() / "config.json");
  contains(message_of_opening(forbids.origin() + "/m/"),
           "/m/config.json: expected its content, found status 403");
  const HttpServer has_none(serve(404));
  CHECK(message_of_opening(has_none.origin() + "/m/").empty());
}

}  // namespace listing_test
