#pragma once
#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lib/base/io/file.h"
#include "lib/source/hub/remote_source.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/environment.h"
#include "tests/support/hub/hub_server.h"
#include "tests/support/message.h"
#include "tests/support/scratch.h"

namespace twofour {

/// Waits of milliseconds in place of seconds.
inline constexpr RetryPolicy kQuick{4, std::chrono::milliseconds(1), std::chrono::seconds(5)};

/// A checkpoint of two files, a server of it, and an environment that leads there.
struct HubFixture {
  explicit HubFixture(int64_t rows = 700) {
    Tensors one, two;
    add_bf16(one, "a", {rows, 512}, 1);
    add_bf16(two, "b", {rows, 512}, 2);
    add_bf16(two, "c", {3}, 3);
    write_checkpoint(scratch / "source", {one, two}, R"({"model_type": "llama"})");
    write_text(scratch / "source" / "tokenizer.json", "{}");
    server.emplace("org/name", scratch / "source");
    endpoint.emplace("HF_ENDPOINT", server->endpoint());
  }
  std::filesystem::path source() const { return scratch / "source"; }
  /// Every answer that `is_meant` is met by `answer` for the first `times` of them.
  void fail(int times, std::function<bool(const HubRequest&)> is_meant,
            std::function<ServerAnswer(const ServerAnswer&)> answer) {
    auto left = std::make_shared<std::atomic<int>>(times);
    server->set_fault([=](const HubRequest& r, const ServerAnswer& usual) -> std::optional<ServerAnswer> {
      if (!is_meant(r) || (*left)-- <= 0) return std::nullopt;
      return answer(usual);
    });
  }

  Scratch scratch;
  std::optional<HubServer> server;
  Variable home{"HF_HOME", scratch.path.string()}, token{"HF_TOKEN", std::nullopt},
      token_path{"HF_TOKEN_PATH", std::nullopt}, proxy{"no_proxy", "127.0.0.1"};
  std::optional<Variable> endpoint;
};

inline bool any(const HubRequest&) { return true; }
inline bool at_storage(const HubRequest& r) { return r.to_storage; }
inline bool at_resolve(const HubRequest& r) { return r.request.path.find("/resolve/") != std::string::npos; }

inline std::vector<uint8_t> bytes_of(const std::filesystem::path& file) {
  const InputFile input(file);
  std::vector<uint8_t> bytes(input.size());
  input.read(0, bytes);
  return bytes;
}

/// All files below a folder read as those of the source.
inline void check_same(const std::filesystem::path& source, const std::filesystem::path& remote) {
  CHECK(files_below(source) == files_below(remote));
  for (const auto& [name, size] : files_below(source))
    CHECK_MESSAGE(bytes_of(source / name) == bytes_of(remote / name), name);
}

inline std::string message_of_opening(const std::string& source = "hf://org/name") {
  return message_of([&] {
    const RemoteSource remote(source, std::nullopt, kQuick);
    check_same(remote.path(), remote.path());
  });
}

inline ServerAnswer with_status(int status, const std::string& field = "") {
  ServerAnswer answer;
  answer.status = status;
  if (!field.empty()) answer.fields.push_back(field);
  return answer;
}

}  // namespace twofour
