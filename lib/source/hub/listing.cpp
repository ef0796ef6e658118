#include "lib/source/hub/listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <filesystem>
#include <set>

#include "formats/error.h"
#include "formats/json/access.h"
#include "lib/base/findings/shown_url.h"

namespace twofour {
namespace {

constexpr uint64_t kLongestList = 256u << 20;
constexpr size_t kMostFiles = 100'000;
/// The upper limit of a file's size in bytes. No file of a checkpoint is larger, and some file systems allow
/// less.
constexpr uint64_t kLargestFile = uint64_t{1} << 43;
constexpr const char* kIndexFile = "model.safetensors.index.json";

/// Config files beside a single file. They determine how its values are read.
constexpr const char* kConfigs[] = {"config.json", "hf_quant_config.json", "quantize_config.json",
                                    "quant_config.json"};
/// Files that are requested from a server without listings.
constexpr const char* kUsualFiles[] = {"config.json",
                                       "hf_quant_config.json",
                                       "quantize_config.json",
                                       "quant_config.json",
                                       "generation_config.json",
                                       "twofour.json",
                                       "tokenizer.json",
                                       "tokenizer_config.json",
                                       "tokenizer.model",
                                       "special_tokens_map.json",
                                       "added_tokens.json",
                                       "vocab.json",
                                       "merges.txt",
                                       "chat_template.jinja",
                                       "preprocessor_config.json",
                                       "processor_config.json",
                                       "recipe.yaml",
                                       "README.md",
                                       "TWOFOUR.md",
                                       "LICENSE"};

/// Throws Error unless `name` stays in its folder on every file system.
void check_relative(const std::string& where, const std::string& name) {
  bool sound = !name.empty() && name.size() < PATH_MAX && name.find('\0') == name.npos;
  for (size_t begin = 0; sound && begin <= name.size();) {
    const size_t end = std::min(name.find('/', begin), name.size());
    const std::string piece = name.substr(begin, end - begin);
    sound = !piece.empty() && piece != "." && piece != ".." && piece.size() <= NAME_MAX;
    begin = end + 1;
  }
  if (!sound)
    throw Error(fmt::format("{}: expected names of files, found {}", where, json_quote_short(name)));
}

/// Throws Error if two files cannot be stored under their names side by side.
void check_apart(const std::string& where, const std::vector<RemoteObject>& files) {
  std::set<std::string> names;
  for (const RemoteObject& file : files) {
    if (file.size > kLargestFile)
      throw Error(
          fmt::format("{}: expected at most {} bytes, found {}", file.shown, kLargestFile, file.size));
    if (!names.insert(file.name).second)
      throw Error(fmt::format("{}: expected one file of each name, found two of {}", where,
                              json_quote_short(file.name)));
  }
  for (const std::string& name : names) {
    for (size_t slash = name.find('/'); slash != name.npos; slash = name.find('/', slash + 1)) {
      if (!names.contains(name.substr(0, slash))) continue;
      throw Error(fmt::format("{}: expected a folder {}, found a file of that name", where,
                              json_quote_short(name.substr(0, slash))));
    }
  }
}

bool is_digest(const std::string& text, size_t digits) {
  return text.size() == digits && text.find_first_not_of("0123456789abcdef") == text.npos;
}

/// Reads an element of "siblings", which the API lists with blobs=true.
RemoteObject object_of(const std::string& where, const Json& entry) {
  RemoteObject object;
  object.name = text_of(entry, "rfilename");
  check_relative(where, object.name);
  const Json& lfs = member(entry, "lfs");
  object.sha256 = text_of(lfs, "sha256");
  if (!object.sha256.empty() && !is_digest(object.sha256, 64)) {
    throw Error(fmt::format("{}: {}: expected a SHA-256 of 64 digits, found {}", where,
                            json_quote_short(object.name), json_quote_short(object.sha256)));
  }
  const std::string blob = text_of(entry, "blobId");
  if (!lfs.is_object()) object.git_sha1 = blob;  // for a file of Git LFS, this is the pointer's hash
  if (!object.git_sha1.empty() && !is_digest(object.git_sha1, 40)) {
    throw Error(fmt::format("{}: {}: expected git's SHA-1 of 40 digits, found {}", where,
                            json_quote_short(object.name), json_quote_short(object.git_sha1)));
  }
  object.etag = object.sha256.empty() ? blob : object.sha256;
  const Json& size = lfs.is_object() ? member(lfs, "size") : member(entry, "size");
  try {
    object.size = whole_number<uint64_t>(size);
  } catch (const Json::exception&) {
    throw Error(fmt::format("{}: {}: expected a size, found {}", where, json_quote_short(object.name),
                            json_quote_short(json_line(size))));
  }
  return object;
}

RemoteListing list_repository(const RemoteAddress& a, const Fetcher& fetcher) {
  const std::string asked = fmt::format("hf://{}@{}", a.repo, a.revision);
  const Url& endpoint = fetcher.settings().endpoint;
  Url url = endpoint;
  url.path += fmt::format("/api/models/{}/revision/{}", a.repo, percent_encoded(a.revision, false));
  url.query = "?blobs=true";
  const Json answer = parse_json(asked, fetcher.get_text(url, asked, kLongestList));
  const std::string commit = text_of(answer, "sha");
  if (!is_digest(commit, 40))
    throw Error(fmt::format("{}: expected a commit of 40 digits, found {}", asked, json_quote_short(commit)));
  const Json& siblings = member(answer, "siblings");
  if (!siblings.is_array() || siblings.size() > kMostFiles) {
    throw Error(fmt::format("{}: expected a list of at most {} files, found {}", asked, kMostFiles,
                            siblings.is_array() ? std::to_string(siblings.size()) : "none"));
  }
  RemoteListing listing;
  const std::string repository = fmt::format("hf://{}@{}", a.repo, commit);
  listing.name = repository + (a.path.empty() ? "" : "/" + a.path);
  listing.note = {{"repository", a.repo}, {"commit", commit}};
  if (!a.path.empty()) listing.note["path"] = a.path;
  if (endpoint.text() != "https://huggingface.co") listing.note["endpoint"] = endpoint.text();
  const std::filesystem::path folder = std::filesystem::path(a.path).parent_path();
  const bool has_file = std::any_of(siblings.begin(), siblings.end(), [&](const Json& entry) {
    return !a.path.empty() && text_of(member(entry, "rfilename")) == a.path;
  });
  for (const Json& entry : siblings) {
    RemoteObject object = object_of(asked, entry);
    const bool is_file = !a.path.empty() && object.name == a.path;
    const bool is_beside = has_file && std::ranges::any_of(kConfigs, [&](const char* name) {
                             return object.name == (folder / name).string();
                           });
    if (!a.path.empty() && !is_file && !is_beside && !object.name.starts_with(a.path + "/")) continue;
    object.shown = repository + "/" + object.name;
    object.url = endpoint;
    object.url.path += fmt::format("/{}/resolve/{}/{}", a.repo, commit, percent_encoded(object.name, true));
    object.commit = commit;
    if (is_file) {
      object.name = std::filesystem::path(object.name).filename().string();
      listing.file = object.name;
      listing.name.erase(listing.name.size() - object.name.size() - 1);
    } else if (is_beside) {
      object.name = std::filesystem::path(object.name).filename().string();
    } else if (!a.path.empty()) {
      object.name.erase(0, a.path.size() + 1);
    }
    listing.files.push_back(std::move(object));
  }
  if (listing.files.empty() && !a.path.empty())
    throw Error(fmt::format("{}: expected a folder or file of that name, found none", listing.name));
  return listing;
}

RemoteObject object_at(const Url& folder, const std::string& name) {
  RemoteObject object;
  object.name = name;
  object.url = folder;
  object.url.path += percent_encoded(name, true);
  object.shown = shown_url(object.url.text());
  return object;
}

std::string text_at(const RemoteObject& object, const Fetcher& fetcher) {
  RedirectCache redirects;
  std::string text;
  if (object.size > kLongestList)
    throw Error(
        fmt::format("{}: expected at most {} bytes, found {}", object.shown, kLongestList, object.size));
  fetcher.read(object, redirects, 0, object.size, [&](std::span<const uint8_t> piece) {
    text.append(reinterpret_cast<const char*>(piece.data()), piece.size());
  });
  return text;
}

RemoteListing list_server(const RemoteAddress& a, const Fetcher& fetcher) {
  RemoteListing listing;
  const bool is_file = !a.url.path.ends_with('/');
  listing.name = shown_url(a.url.text());
  listing.note = {{"url", listing.name}};
  if (is_file) {
    RemoteObject object;
    object.name = percent_decoded(listing.name, a.url.path.substr(a.url.path.rfind('/') + 1));
    check_relative(listing.name, object.name);
    object.shown = listing.name;
    object.url = a.url;
    if (!fetcher.look_at(object)) throw Error(fmt::format("{}: expected a file, found none", object.shown));
    listing.file = object.name;
    listing.name.erase(listing.name.rfind('/'));
    listing.files.push_back(std::move(object));
    if (!a.url.query.empty()) return listing;  // the query is only for that file
    Url folder = a.url;
    folder.path.erase(folder.path.rfind('/') + 1);
    for (const char* name : kConfigs) {
      RemoteObject config = object_at(folder, name);
      if (fetcher.look_at(config, true)) listing.files.push_back(std::move(config));
    }
    return listing;
  }
  listing.name.pop_back();
  for (const char* name : kUsualFiles) {
    RemoteObject object = object_at(a.url, name);
    const bool optional = object.name != "config.json";
    if (fetcher.look_at(object, optional)) listing.files.push_back(std::move(object));
  }
  std::set<std::string> weights;
  RemoteObject index = object_at(a.url, kIndexFile);
  if (fetcher.look_at(index, true)) {
    const Json json = parse_json(index.shown, text_at(index, fetcher));
    const Json& map = member(json, "weight_map");
    if (!map.is_object())
      throw Error(fmt::format("{}: expected an object weight_map, found none", index.shown));
    for (const Json& file : map) {
      check_relative(index.shown, text_of(file));
      weights.insert(text_of(file));
    }
    listing.files.push_back(std::move(index));
  } else {
    weights.insert("model.safetensors");
  }
  for (const std::string& name : weights) {
    RemoteObject object = object_at(a.url, name);
    if (!fetcher.look_at(object)) throw Error(fmt::format("{}: expected a file, found none", object.shown));
    listing.files.push_back(std::move(object));
  }
  return listing;
}

}  // namespace

RemoteListing list_remote(const RemoteAddress& address, const Fetcher& fetcher) {
  RemoteListing listing =
      address.repo.empty() ? list_server(address, fetcher) : list_repository(address, fetcher);
  check_apart(listing.name, listing.files);
  return listing;
}

}  // namespace twofour
