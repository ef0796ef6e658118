#include "lib/source/hub/settings.h"

#include <algorithm>
#include <cstdlib>
#include <filesystem>

#include "formats/error.h"
#include "lib/base/io/file.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

std::string variable(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

/// True if an environment variable turns its switch on, by the rules of huggingface_hub.
bool is_on(const char* name) {
  std::string value = variable(name);
  std::transform(value.begin(), value.end(), value.begin(),
                 [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
  return value == "1" || value == "ON" || value == "YES" || value == "TRUE";
}

std::string trimmed(std::string text) {
  std::erase_if(text, [](char c) { return c == '\n' || c == '\r'; });
  const size_t begin = text.find_first_not_of(" \t"), end = text.find_last_not_of(" \t");
  return begin == text.npos ? "" : text.substr(begin, end - begin + 1);
}

fs::path token_file() {
  if (const std::string path = variable("HF_TOKEN_PATH"); !path.empty()) return path;
  if (const std::string home = variable("HF_HOME"); !home.empty()) return fs::path(home) / "token";
  if (const std::string cache = variable("XDG_CACHE_HOME"); !cache.empty())
    return fs::path(cache) / "huggingface/token";
  const std::string home = variable("HOME");
  return home.empty() ? fs::path() : fs::path(home) / ".cache/huggingface/token";
}

std::string find_token() {
  if (is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN")) return "";
  std::string where = "HF_TOKEN", token = trimmed(variable("HF_TOKEN"));
  if (token.empty()) {
    const fs::path file = token_file();
    std::error_code error;
    if (file.empty() || !fs::is_regular_file(file, error)) return "";
    constexpr uint64_t kLongest = 64u << 10;
    where = file.string();
    token = trimmed(read_text(file, kLongest));
  }
  const bool is_printable =
      std::all_of(token.begin(), token.end(), [](char c) { return c > ' ' && c < 127; });
  if (!is_printable) throw Error(where + ": expected a token of printable characters, found others");
  return token;
}

}  // namespace

HubSettings hub_settings() {
  for (const char* name : {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"}) {
    if (is_on(name))
      throw Error(std::string(name) + ": expected it unset for hf:// and https://, found it set");
  }
  std::string endpoint = variable("HF_ENDPOINT");
  if (endpoint.empty()) endpoint = "https://huggingface.co";
  HubSettings settings{parse_url("HF_ENDPOINT", endpoint), find_token()};
  while (settings.endpoint.path.ends_with('/')) settings.endpoint.path.pop_back();
  settings.endpoint.query.clear();
  return settings;
}

}  // namespace twofour
