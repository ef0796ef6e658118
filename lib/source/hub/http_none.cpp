#include "lib/source/hub/http.h"

namespace twofour {

void http_get(const HttpRequest&, HttpReceiver&) {
  throw Error(
      "hf:// and https://: expected a program with libcurl, found one without: static programs cannot open "
      "libraries; use the .deb or your own build with libcurl's headers (Debian: libcurl4-openssl-dev), or "
      "download the checkpoint first");
}

}  // namespace twofour
