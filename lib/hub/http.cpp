#include "lib/hub/http.h"

namespace twofour {

std::string HttpHead::field(const std::string& name) const {
  const auto at = fields.find(name);
  return at == fields.end() ? "" : at->second;
}

}  // namespace twofour
