#pragma once
#include <string>

#include "lib/hub/url.h"

namespace twofour {

/// What the environment says of the Hub, as huggingface_hub reads it.
struct HubSettings {
  Url endpoint;       ///< HF_ENDPOINT, or https://huggingface.co
  std::string token;  ///< secret; HF_TOKEN, or the file HF_TOKEN_PATH, HF_HOME/token; empty: none

  /// Whether http:// is allowed: only where the endpoint itself is http://, as that of a test is.
  bool http_allowed() const { return endpoint.scheme == "http"; }
  /// Whether a request to `url` carries the token: to the endpoint's scheme, host and port alone.
  bool takes_token(const Url& url) const { return !token.empty() && url.origin() == endpoint.origin(); }
};

/// Throws Error where HF_HUB_OFFLINE is set, where HF_ENDPOINT is no URL and where a token has characters
/// that a header cannot have.
HubSettings hub_settings();

}  // namespace twofour
