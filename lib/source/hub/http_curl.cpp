#include <curl/curl.h>
#include <dlfcn.h>
#include <fmt/format.h>

#include <atomic>
#include <cctype>
#include <exception>
#include <string_view>
#include <utility>

#include "lib/base/findings/shown_url.h"
#include "lib/base/primitives/idle.h"
#include "lib/base/threads/interrupt.h"
#include "lib/source/hub/http.h"
#include "lib/source/hub/url.h"

#undef curl_easy_setopt  // a macro of compilers that check types
#undef curl_easy_getinfo

namespace twofour {
namespace {

constexpr const char* kLibraries[] = {"libcurl.so.4", "libcurl-gnutls.so.4"};
constexpr long kConnectSeconds = 30;
/// A transfer counts as broken if it has fewer than kSlowBytes bytes per second for kSlowSeconds seconds.
constexpr long kSlowBytes = 1000, kSlowSeconds = 60;

/// The functions of libcurl that are called here.
struct Curl {
  decltype(&::curl_global_init) global_init;
  decltype(&::curl_easy_init) easy_init;
  decltype(&::curl_easy_setopt) setopt;
  decltype(&::curl_easy_perform) perform;
  decltype(&::curl_easy_getinfo) getinfo;
  decltype(&::curl_easy_cleanup) cleanup;
  decltype(&::curl_easy_reset) reset;
  decltype(&::curl_easy_strerror) strerror;
  decltype(&::curl_slist_append) append;
  decltype(&::curl_slist_free_all) free_all;
};

template <class F>
void find(void* library, const char* name, F& function) {
  function = reinterpret_cast<F>(::dlsym(library, name));
  if (function == nullptr) throw Error(fmt::format("libcurl: expected the function {}, found none", name));
}

Curl open_curl() {
  void* library = nullptr;
  for (const char* name : kLibraries) {
    if (library == nullptr) library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    throw Error(
        fmt::format("{}: expected this library for hf:// and https://, found none; install libcurl (Debian: "
                    "libcurl4), or download the checkpoint first",
                    kLibraries[0]));
  }
  Curl curl{};
  find(library, "curl_global_init", curl.global_init);
  find(library, "curl_easy_init", curl.easy_init);
  find(library, "curl_easy_setopt", curl.setopt);
  find(library, "curl_easy_perform", curl.perform);
  find(library, "curl_easy_getinfo", curl.getinfo);
  find(library, "curl_easy_cleanup", curl.cleanup);
  find(library, "curl_easy_reset", curl.reset);
  find(library, "curl_easy_strerror", curl.strerror);
  find(library, "curl_slist_append", curl.append);
  find(library, "curl_slist_free_all", curl.free_all);
  if (curl.global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
    throw Error("libcurl: cannot be initialized; download the checkpoint first");
  return curl;
}

const Curl& curl() {
  static const Curl opened = open_curl();
  return opened;
}

/// A pool of handles that are not in use. Each keeps its open connections.
class HandlePool {
 public:
  HandlePool() = default;
  HandlePool(const HandlePool&) = delete;
  HandlePool& operator=(const HandlePool&) = delete;
  ~HandlePool() {
    while (const auto handle = idle_.take()) curl().cleanup(*handle);
  }
  CURL* take() {
    if (const auto handle = idle_.take()) return *handle;
    CURL* made = curl().easy_init();
    if (made == nullptr) throw Error("libcurl: cannot create a handle: out of memory");
    return made;
  }
  void give_back(CURL* handle) {
    curl().reset(handle);
    idle_.give_back(handle);
  }

 private:
  Idle<CURL*> idle_;
};

/// Returns the pool. It is created after libcurl is loaded, so that connections end before the exit handlers
/// of libcurl and its TLS library run.
HandlePool& pool() {
  curl();
  static HandlePool handles;
  return handles;
}

/// One transfer, for libcurl's callbacks. An exception is stored until libcurl has returned.
struct Transfer {
  HttpReceiver& receiver;
  HttpHead head{};
  bool head_given = false, ended = false;
  std::exception_ptr failure{};

  /// Calls `f` and stores its exception. Returns false to end the transfer.
  template <class F>
  bool guarded(F&& f) {
    try {
      if (f()) return true;
      ended = true;
    } catch (...) {
      failure = std::current_exception();
    }
    return false;
  }
  bool give_head() { return std::exchange(head_given, true) || receiver.head(head); }
};

size_t on_field(char* text, size_t size, size_t count, void* to) {
  auto& transfer = *static_cast<Transfer*>(to);
  std::string_view line(text, size * count);
  while (!line.empty() && (line.back() == '\r' || line.back() == '\n')) line.remove_suffix(1);
  if (line.starts_with("HTTP/")) {  // an interim answer may come first
    transfer.head = {};
    return size * count;
  }
  const size_t colon = line.find(':');
  if (colon == line.npos) return size * count;
  std::string name(line.substr(0, colon));
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
  line.remove_prefix(colon + 1);
  while (!line.empty() && line.front() == ' ') line.remove_prefix(1);
  transfer.head.fields[std::move(name)] = line;
  return size * count;
}

size_t on_body(char* bytes, size_t size, size_t count, void* to) {
  auto& [transfer, handle] = *static_cast<std::pair<Transfer&, CURL*>*>(to);
  const bool go_on = transfer.guarded([&, &t = transfer, h = handle] {
    if (!t.head_given) {
      long status = 0;
      curl().getinfo(h, CURLINFO_RESPONSE_CODE, &status);
      t.head.status = static_cast<int>(status);
    }
    return t.give_head() && t.receiver.body({reinterpret_cast<const uint8_t*>(bytes), size * count});
  });
  return go_on ? size * count : 0;
}

int on_progress(void* to, curl_off_t, curl_off_t, curl_off_t, curl_off_t) {
  const bool go_on = static_cast<Transfer*>(to)->guarded([] {
    check_interrupt();
    return true;
  });
  return go_on ? 0 : 1;
}

class Handle {
 public:
  explicit Handle(const HttpRequest& request) : handle_(pool().take()) {
    for (const std::string& field : request.fields) fields_ = curl().append(fields_, field.c_str());
  }
  Handle(const Handle&) = delete;
  Handle& operator=(const Handle&) = delete;
  ~Handle() {
    pool().give_back(handle_);
    curl().free_all(fields_);
  }
  CURL* get() const { return handle_; }
  curl_slist* fields() const { return fields_; }
  template <class T>
  void set(CURLoption option, T value) {
    curl().setopt(handle_, option, value);
  }

 private:
  CURL* handle_;
  curl_slist* fields_ = nullptr;
};

}  // namespace

void http_get(const HttpRequest& request, HttpReceiver& receiver) {
  check_interrupt();
  Handle handle(request);
  Transfer transfer{receiver};
  std::pair<Transfer&, CURL*> body(transfer, handle.get());
  handle.set(CURLOPT_URL, request.url.c_str());
  handle.set(CURLOPT_HTTPHEADER, handle.fields());
  handle.set(CURLOPT_NOSIGNAL, 1L);
  handle.set(CURLOPT_FOLLOWLOCATION, 0L);
  handle.set(CURLOPT_PROTOCOLS_STR, "http,https");
  handle.set(CURLOPT_HTTP_VERSION, static_cast<long>(CURL_HTTP_VERSION_1_1));
  handle.set(CURLOPT_CONNECTTIMEOUT, kConnectSeconds);
  handle.set(CURLOPT_LOW_SPEED_LIMIT, kSlowBytes);
  handle.set(CURLOPT_LOW_SPEED_TIME, kSlowSeconds);
  handle.set(CURLOPT_BUFFERSIZE, 512L << 10);
  handle.set(CURLOPT_HEADERFUNCTION, &on_field);
  handle.set(CURLOPT_HEADERDATA, &transfer);
  handle.set(CURLOPT_WRITEFUNCTION, &on_body);
  handle.set(CURLOPT_WRITEDATA, &body);
  handle.set(CURLOPT_NOPROGRESS, 0L);
  handle.set(CURLOPT_XFERINFOFUNCTION, &on_progress);
  handle.set(CURLOPT_XFERINFODATA, &transfer);
  const CURLcode code = curl().perform(handle.get());
  if (transfer.failure) std::rethrow_exception(transfer.failure);
  if (transfer.ended) return;
  const std::string failure =
      fmt::format("{}: {}", shown_url(request.url),
                  code == CURLE_OPERATION_TIMEDOUT && transfer.head_given
                      ? fmt::format("fewer than {} bytes per second for {} s", kSlowBytes, kSlowSeconds)
                      : curl().strerror(code));
  if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE) {
    throw Error(fmt::format("{}: expected a certificate that this system trusts, found one that it does not",
                            shown_url(request.url)));
  }
  if (code == CURLE_URL_MALFORMAT)
    throw Error(shown_url(request.url) + ": expected a URL that libcurl accepts, found another");
  // If no answer has ever come, the user is offline and should not wait. If the network fails later, waiting
  // may help.
  static std::atomic<bool> any_answer{false};
  const bool is_unknown = code == CURLE_COULDNT_RESOLVE_HOST || code == CURLE_COULDNT_RESOLVE_PROXY;
  if (is_unknown && !any_answer) throw Error(failure + ": expected a network connection to it");
  if (code != CURLE_OK) throw ConnectionError(failure);
  any_answer = true;
  long status = 0;
  curl().getinfo(handle.get(), CURLINFO_RESPONSE_CODE, &status);
  transfer.head.status = static_cast<int>(status);
  transfer.give_head();
}

}  // namespace twofour
