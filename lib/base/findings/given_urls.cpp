#include "lib/base/findings/given_urls.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <vector>

#include "lib/base/findings/shown_url.h"

namespace twofour {
namespace {

struct GivenUrl {
  std::string shown, whole;
};

std::mutex mutex;

std::vector<GivenUrl>& all() {
  static std::vector<GivenUrl> urls;
  return urls;
}

const GivenUrl* find(std::string GivenUrl::*by, const std::string& text) {
  const auto at = std::find_if(all().begin(), all().end(), [&](const GivenUrl& u) { return u.*by == text; });
  return at == all().end() ? nullptr : &*at;
}

/// The text that stands for a URL from now on. Every URL has a text of its own.
std::string shown_from_now(const std::string& whole) {
  if (const GivenUrl* known = find(&GivenUrl::whole, whole)) return known->shown;
  const std::string plain = shown_url(whole);
  std::string shown = plain;
  for (int i = 2; find(&GivenUrl::shown, shown) != nullptr; ++i) shown = fmt::format("{}#{}", plain, i);
  all().push_back({shown, whole});
  return shown;
}

}  // namespace

GivenUrls::GivenUrls(std::span<std::string> words) {
  const std::lock_guard lock(mutex);
  for (std::string& word : words) {
    const size_t begin = find_url(word);
    if (begin != word.npos) word = word.substr(0, begin) + shown_from_now(word.substr(begin));
  }
}

GivenUrls::~GivenUrls() {
  const std::lock_guard lock(mutex);
  all().clear();
}

std::string whole_url(const std::string& url) {
  const std::lock_guard lock(mutex);
  const GivenUrl* given = find(&GivenUrl::shown, url);
  return given != nullptr ? given->whole : url;
}

std::string word_as_given(const std::string& word) {
  const std::lock_guard lock(mutex);
  const GivenUrl* given = nullptr;  // a URL without its query may be no URL any more, so all are tried
  for (const GivenUrl& url : all()) {
    const bool is_longer = given == nullptr || url.shown.size() > given->shown.size();
    if (is_longer && word.ends_with(url.shown)) given = &url;
  }
  return given == nullptr ? word : word.substr(0, word.size() - given->shown.size()) + given->whole;
}

}  // namespace twofour
