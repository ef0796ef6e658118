#pragma once
#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "formats/error.h"

namespace twofour {

/// The connection failed or broke: another attempt may succeed.
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
  std::map<std::string, std::string> fields{};  ///< by names in small letters
  /// Empty if the answer has no such field.
  std::string field(const std::string& name) const {
    const auto at = fields.find(name);
    return at == fields.end() ? "" : at->second;
  }
};

/// A receiver of an answer while it arrives. Both functions may throw, and end the transfer by returning
/// false.
class HttpReceiver {
 public:
  virtual ~HttpReceiver() = default;
  /// Called once, before the body.
  virtual bool head(const HttpHead& head) = 0;
  virtual bool body(std::span<const uint8_t> piece) = 0;
};

/// One GET by libcurl, which is loaded at the first call; redirects are not followed. Connections are reused
/// by later requests. Safe from several threads. Throws ConnectionError if the connection fails, stalls for
/// 60 s or ends before the announced length, Interrupted on Ctrl-C, and Error if there is no libcurl.
void http_get(const HttpRequest& request, HttpReceiver& receiver);

}  // namespace twofour
