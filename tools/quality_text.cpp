#include "tools/quality_text.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace twofour {

std::string quality_text(const Quality& q) {
  if (q.retained_energy() >= 1) return "no energy lost";
  return fmt::format(
      "retained energy {:.2f} %, relative error {:.2f} %, SNR {:.2f} dB, cosine {:.4f}, tied quads {:.1f} %",
      100 * q.retained_energy(), 100 * q.relative_error(), q.snr_db(), q.cosine(), 100 * q.tied_share());
}

Json quality_to_json(const Quality& q) {
  const Json snr = std::isfinite(q.snr_db()) ? Json(q.snr_db()) : Json(nullptr);
  return {{"retained_energy", q.retained_energy()},
          {"relative_error", q.relative_error()},
          {"snr_db", snr},
          {"cosine", q.cosine()},
          {"tied_quads", q.tied_share()}};
}

}  // namespace twofour
