#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/hub/http_server.h"

namespace twofour {

/// A request that HubServer got: by its endpoint or by its storage, to which large files redirect.
struct HubRequest {
  bool to_storage;
  ServerRequest request;
};

/// Speaks the Hub's API: a repository by revision, its files by /resolve/, those of Git LFS by a redirect to
/// signed URLs on another port. Every file that ends in .safetensors is one of Git LFS.
class HubServer {
 public:
  /// `repo` ("org/name") has the files below `directory`; its branch main is at kCommit.
  HubServer(const std::string& repo, const std::filesystem::path& directory);

  std::string endpoint() const { return front_->origin(); }
  std::string storage() const { return storage_->origin(); }
  static constexpr const char* kCommit = "0123456789abcdef0123456789abcdef01234567";

  /// Requests without this token are refused, as for a private repository.
  void demand(const std::string& token) { token_ = token; }
  /// With the right token, too: as where its terms were not accepted.
  void gate() { gated_ = true; }
  /// Asked first about every request, from several threads: an answer, or nothing for the usual one. It gets
  /// that.
  using Fault = std::function<std::optional<ServerAnswer>(const HubRequest&, const ServerAnswer& usual)>;
  void set_fault(Fault fault);
  /// Replaces a file's contents. Those that were listed before stay what the list says.
  void change(const std::string& file, const std::string& contents);
  /// All requests so far, in order.
  std::vector<HubRequest> requests() const;
  void forget_requests();

 private:
  struct File {
    std::string contents, etag;
    bool lfs = false;
  };
  static File make_file(const std::string& name, std::string contents);
  ServerAnswer handle(bool to_storage, const ServerRequest& request);
  ServerAnswer usual(bool to_storage, const ServerRequest& request) const;
  ServerAnswer list(const std::string& revision) const;
  ServerAnswer resolve(const ServerRequest& request, const std::string& revision,
                       const std::string& file) const;

  const std::string repo_;
  std::string token_;
  bool gated_ = false;
  mutable std::mutex mutex_;
  Fault fault_;
  std::map<std::string, File> files_;
  std::vector<HubRequest> requests_;
  std::optional<HttpServer> storage_, front_;  ///< last: they end first
};

}  // namespace twofour
