#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "formats/error.h"

namespace twofour {

/// The connection failed or broke. Another attempt may succeed.
struct ConnectionError : Error {
  using Error::Error;
};

struct HttpRequest {
  std::string url;
  std::vector<std::string> fields{};  ///< "Range: bytes=0-99"
};

/// Status and header fields of an answer.
struct HttpHead {
  int status = 0;
  std::map<std::string, std::string> fields{};  ///< header fields by name, in lower case
  /// The value of a field. Empty if the answer does not have it.
  std::string field(const std::string& name) const {
    const auto at = fields.find(name);
    return at == fields.end() ? "" : at->second;
  }
};

/// Receives an answer while it arrives. Both functions may throw. Either returns false to end the transfer.
class HttpReceiver {
 public:
  virtual ~HttpReceiver() = default;
  /// Receives the head, once and before the body.
  virtual bool head(const HttpHead& head) = 0;
  virtual bool body(std::span<const uint8_t> piece) = 0;
};

/// Sends one GET request with libcurl, which is loaded at the first call. Redirects are not followed. Later
/// requests reuse connections. Several threads may call it at once. Throws ConnectionError if the connection
/// fails, brings fewer than 1000 bytes per second for 60 s or ends before the announced length; Interrupted
/// on Ctrl-C; and Error if there is no libcurl.
void http_get(const HttpRequest& request, HttpReceiver& receiver);

}  // namespace twofour
