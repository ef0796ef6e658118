#pragma once
#include <string>

#include "lib/source/hub/url.h"

namespace twofour {

/// The settings of the Hub from the environment, as huggingface_hub reads it.
struct HubSettings {
  Url endpoint;       ///< HF_ENDPOINT, or https://huggingface.co
  std::string token;  ///< secret; HF_TOKEN, or the file HF_TOKEN_PATH, HF_HOME/token; empty: none

  /// True if http:// is allowed: only if the endpoint itself is http://, as in a test.
  bool http_allowed() const { return endpoint.scheme == "http"; }
  /// True if a request to `url` carries the token: only for the endpoint's scheme, host and port.
  bool takes_token(const Url& url) const { return !token.empty() && url.origin() == endpoint.origin(); }
};

/// Throws Error if HF_HUB_OFFLINE is set, HF_ENDPOINT is no URL or a token has characters that a header
/// cannot have.
HubSettings hub_settings();

}  // namespace twofour
