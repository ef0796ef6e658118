#include "lib/source/hub/address.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/base/findings/shown_url.h"

namespace twofour {
namespace {

constexpr std::string_view kScheme = "hf://";
constexpr const char* kForm = "hf://org/name[@revision][/path]";

std::vector<std::string> pieces_of(std::string_view path) {
  std::vector<std::string> pieces;
  while (!path.empty()) {
    const size_t end = std::min(path.find('/'), path.size());
    if (end > 0) pieces.emplace_back(path.substr(0, end));
    path.remove_prefix(std::min(end + 1, path.size()));
  }
  return pieces;
}

std::string joined(const std::vector<std::string>& pieces, size_t first) {
  std::string path;
  for (size_t i = first; i < pieces.size(); ++i) path += (path.empty() ? "" : "/") + pieces[i];
  return path;
}

/// True for a name that the Hub allows for organizations and repositories.
bool is_repo_piece(std::string_view piece) {
  return !piece.empty() && piece.size() <= 96 && piece != "." && piece != ".." &&
         std::all_of(piece.begin(), piece.end(), [](char c) {
           return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') || c == '-' ||
                  c == '_' || c == '.';
         });
}

[[noreturn]] void refuse(std::string_view source, const char* expected) {
  throw Error(fmt::format("{}: expected {}", json_quote_short(shown_url(source)), expected));
}

/// True for a name that git allows for branches and tags. Other names, such as "..", could lead to another
/// URL.
bool is_revision(std::string_view name) {
  constexpr std::string_view kRefused = " ~^:?*[\\";
  return name != "." && name.find("..") == name.npos && std::all_of(name.begin(), name.end(), [&](char c) {
           return static_cast<unsigned char>(c) > 31 && c != 127 && kRefused.find(c) == kRefused.npos;
         });
}

/// Reads the revision that begins at piece `first`, and the path after it. A revision may have slashes only
/// if it is refs/pr/N or refs/convert/NAME, as in huggingface_hub. Other slashes of a revision are written as
/// %2F.
void take_revision(std::string_view source, const std::vector<std::string>& pieces, size_t first,
                   RemoteAddress& to) {
  if (first >= pieces.size() || pieces[first].empty()) refuse(source, "a revision, found none");
  size_t count = 1;
  const bool is_ref = pieces[first] == "refs" && first + 2 < pieces.size() &&
                      (pieces[first + 1] == "pr" || pieces[first + 1] == "convert");
  if (is_ref) count = 3;
  for (size_t i = first; i < first + count; ++i)
    to.revision += (i == first ? "" : "/") + percent_decoded(shown_url(source), pieces[i]);
  if (!is_revision(to.revision)) refuse(source, "a revision as git names them, found another");
  to.path = joined(pieces, first + count);
}

RemoteAddress parse_hub(std::string_view source, std::vector<std::string> pieces) {
  if (!pieces.empty() && pieces[0] == "models") pieces.erase(pieces.begin());
  if (!pieces.empty() && (pieces[0] == "datasets" || pieces[0] == "spaces" || pieces[0] == "buckets"))
    refuse(source, "a model, found another kind of repository");
  if (pieces.size() < 2) refuse(source, kForm);
  RemoteAddress address;
  const size_t at = pieces[1].find('@');
  std::string name = pieces[1].substr(0, at);
  if (!is_repo_piece(pieces[0]) || !is_repo_piece(name)) refuse(source, kForm);
  address.repo = pieces[0] + "/" + name;
  address.revision = "main";
  address.path = joined(pieces, 2);
  if (at == std::string::npos) return address;
  address.revision.clear();
  pieces[1].erase(0, at + 1);
  take_revision(source, pieces, 1, address);
  return address;
}

/// Parses a page of the Hub. `pieces` are the parts of its path after the endpoint's path.
RemoteAddress parse_page(std::string_view source, const std::vector<std::string>& pieces) {
  if (pieces.size() > 2 && pieces[0] != "models" && pieces[0] != "datasets" && pieces[0] != "spaces") {
    RemoteAddress address = parse_hub(source, {pieces[0], pieces[1]});
    if (pieces[2] != "tree" && pieces[2] != "resolve" && pieces[2] != "blob")
      refuse(source, "a repository, or tree/REVISION, resolve/REVISION or blob/REVISION of it");
    address.revision.clear();
    take_revision(source, pieces, 3, address);
    address.path = percent_decoded(shown_url(source), address.path);
    return address;
  }
  return parse_hub(source, pieces);
}

}  // namespace

bool is_remote_address(std::string_view source) {
  // With one slash, the text is a mistyped URL, or a URL that another program took for a path.
  return source.starts_with(kScheme) || source.starts_with("https:/") || source.starts_with("http:/");
}

RemoteAddress parse_remote_address(std::string_view source, const HubSettings& settings) {
  if (source.starts_with(kScheme)) return parse_hub(source, pieces_of(source.substr(kScheme.size())));
  Url url = parse_url(shown_url(source), source);
  if (url.scheme != "https" && !settings.http_allowed())
    refuse(source, "https://, found http://, which only an endpoint of http:// allows");
  const std::string& root = settings.endpoint.path;
  if (url.origin() == settings.endpoint.origin() && (url.path == root || url.path.starts_with(root + "/")))
    return parse_page(source, pieces_of(std::string_view(url.path).substr(root.size())));
  RemoteAddress address;
  if (!url.path.ends_with(".safetensors")) {
    if (!url.query.empty()) refuse(source, "a folder without a query, found one with");
    if (!url.path.ends_with('/')) url.path += '/';
  }
  address.url = std::move(url);
  return address;
}

}  // namespace twofour
