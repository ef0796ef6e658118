#pragma once
#include <string>

#include "lib/source/hub/url.h"

namespace twofour {

/// The settings for the Hub. They come from the environment, as in huggingface_hub.
struct HubSettings {
  Url endpoint;  ///< HF_ENDPOINT, or https://huggingface.co
  /// Secret token from HF_TOKEN, the file HF_TOKEN_PATH or the file HF_HOME/token. Empty if there is none.
  std::string token;

  /// True if http:// is allowed. It is allowed only if the endpoint itself is http://, as in a test.
  bool http_allowed() const { return endpoint.scheme == "http"; }
  /// True if a request to `url` carries the token. `url` must have the endpoint's scheme, host and port.
  bool takes_token(const Url& url) const { return !token.empty() && url.origin() == endpoint.origin(); }
};

/// Reads the settings. Throws Error if HF_HUB_OFFLINE is set, if HF_ENDPOINT is not a URL, or if the token
/// has characters that a header cannot have.
HubSettings hub_settings();

}  // namespace twofour
