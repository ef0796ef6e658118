#include "tests/support/hub/hub_server.h"

#include <filesystem>
#include <fstream>
#include <sstream>

#include "formats/json.h"
#include "lib/source/hub/sha.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

std::string read_file(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

template <class Hasher>
std::string hash_of(const std::string& text) {
  Hasher hasher;
  hasher.update({reinterpret_cast<const uint8_t*>(text.data()), text.size()});
  return hasher.hex();
}

ServerAnswer error(int status, const std::string& code, const std::string& message) {
  ServerAnswer answer;
  answer.status = status;
  if (!code.empty()) answer.fields.push_back("X-Error-Code: " + code);
  answer.fields.push_back("X-Error-Message: " + message);
  answer.body = message;
  return answer;
}

/// The rest of `text` after `begin`; nothing if it does not begin so.
std::optional<std::string> behind(const std::string& text, const std::string& begin) {
  if (!text.starts_with(begin)) return std::nullopt;
  return text.substr(begin.size());
}

}  // namespace

HubServer::File HubServer::make_file(const std::string& name, std::string contents) {
  File file;
  file.lfs = name.ends_with(".safetensors");
  file.etag = file.lfs ? hash_of<Sha256>(contents)
                       : hash_of<Sha1>("blob " + std::to_string(contents.size()) + '\0' + contents);
  file.contents = std::move(contents);
  return file;
}

HubServer::HubServer(const std::string& repo, const fs::path& directory) : repo_(repo) {
  for (const auto& entry : fs::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file()) continue;
    const std::string name = fs::relative(entry.path(), directory).string();
    files_[name] = make_file(name, read_file(entry.path()));
  }
  storage_.emplace([this](const ServerRequest& request) { return handle(true, request); });
  front_.emplace([this](const ServerRequest& request) { return handle(false, request); });
}

void HubServer::set_fault(Fault fault) {
  const std::lock_guard lock(mutex_);
  fault_ = std::move(fault);
}

void HubServer::change(const std::string& file, const std::string& contents) {
  const std::lock_guard lock(mutex_);
  files_[file] = make_file(file, contents);
}

std::vector<HubRequest> HubServer::requests() const {
  const std::lock_guard lock(mutex_);
  return requests_;
}

void HubServer::forget_requests() {
  const std::lock_guard lock(mutex_);
  requests_.clear();
}

ServerAnswer HubServer::handle(bool to_storage, const ServerRequest& request) {
  const HubRequest asked{to_storage, request};
  Fault fault;
  ServerAnswer answer;
  {
    const std::lock_guard lock(mutex_);
    requests_.push_back(asked);
    fault = fault_;
    answer = usual(to_storage, request);
  }
  if (!fault) return answer;
  return fault(asked, answer).value_or(answer);
}

ServerAnswer HubServer::usual(bool to_storage, const ServerRequest& request) const {
  if (to_storage) {
    // As S3: a signature and a token together are refused.
    if (!request.field("authorization").empty()) return error(400, "", "two ways of authentication");
    if (request.query != "X-Signature=secret") return error(403, "", "expired");
    for (const auto& [name, file] : files_) {
      if (request.path != "/lfs/" + file.etag) continue;
      ServerAnswer answer = answer_range(request, file.contents);
      answer.fields.push_back("ETag: \"storage-" + file.etag + "\"");
      return answer;
    }
    return error(404, "", "no such object");
  }
  const bool is_known = token_.empty() || request.field("authorization") == "Bearer " + token_;
  if (!is_known) return error(401, "", "Invalid username or password.");
  if (const auto revision = behind(request.path, "/api/models/" + repo_ + "/revision/")) {
    if (gated_) return error(403, "GatedRepo", "Access to model " + repo_ + " is restricted.");
    return list(*revision);
  }
  if (request.path == "/api/models/" + repo_) return list("main");
  if (const auto rest = behind(request.path, "/" + repo_ + "/resolve/")) {
    if (gated_) return error(403, "GatedRepo", "Access to model " + repo_ + " is restricted.");
    const size_t slash = rest->find('/');
    return resolve(request, rest->substr(0, slash), rest->substr(slash + 1));
  }
  return error(404, "RepoNotFound", "Repository not found");
}

ServerAnswer HubServer::list(const std::string& revision) const {
  if (revision != "main" && revision != kCommit && revision != "refs%2Fpr%2F1")
    return error(404, "RevisionNotFound", "Invalid rev id: " + revision);
  Json siblings = Json::array();
  for (const auto& [name, file] : files_) {
    Json entry = {{"rfilename", name}, {"size", file.contents.size()}, {"blobId", file.etag.substr(0, 40)}};
    if (file.lfs)
      entry["lfs"] = {{"sha256", file.etag}, {"size", file.contents.size()}, {"pointerSize", 134}};
    siblings.push_back(std::move(entry));
  }
  ServerAnswer answer;
  answer.fields.push_back("Content-Type: application/json; charset=utf-8");
  answer.body = format_json({{"_id", "1"},
                             {"id", repo_},
                             {"modelId", repo_},
                             {"private", false},
                             {"sha", kCommit},
                             {"tags", Json::array()},
                             {"downloads", 0},
                             {"likes", 0},
                             {"siblings", siblings}});
  return answer;
}

ServerAnswer HubServer::resolve(const ServerRequest& request, const std::string& revision,
                                const std::string& name) const {
  if (revision != "main" && revision != kCommit) return error(404, "RevisionNotFound", "Invalid rev id");
  const auto at = files_.find(name);
  if (at == files_.end()) return error(404, "EntryNotFound", "Entry not found");
  const File& file = at->second;
  ServerAnswer answer;
  if (file.lfs) {
    answer.status = 302;
    answer.fields = {"Location: " + storage_->origin() + "/lfs/" + file.etag + "?X-Signature=secret",
                     "X-Linked-Etag: \"" + file.etag + "\"",
                     "X-Linked-Size: " + std::to_string(file.contents.size())};
    answer.body = "Found. Redirecting";
  } else {
    answer = answer_range(request, file.contents);
    answer.fields.push_back("ETag: \"" + file.etag + "\"");
  }
  answer.fields.push_back(std::string("X-Repo-Commit: ") + kCommit);
  return answer;
}

}  // namespace twofour
