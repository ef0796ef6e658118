#include "tools/cli/figures_text.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

namespace twofour {

Json figure_to_json(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

std::string quality_text(const Quality& q) {
  if (q.retained_energy() >= 1) return "no energy lost";
  return fmt::format(
      "retained energy {:.2f} %, relative error {:.2f} %, SNR {:.2f} dB, cosine {:.4f}, decided by ties "
      "{:.1f} %",
      100 * q.retained_energy(), 100 * q.relative_error(), q.snr_db(), q.cosine(), 100 * q.tied_share());
}

Json quality_to_json(const Quality& q) {
  return {{"retained_energy", q.retained_energy()},
          {"relative_error", q.relative_error()},
          {"snr_db", figure_to_json(q.snr_db())},
          {"cosine", q.cosine()},
          {"tied_share", q.tied_share()}};
}

std::string value_error_text(const ValueError& e) {
  if (e.different == 0) return fmt::format("all {} weights equal", e.weights);
  return fmt::format(
      "relative error {:.3g} %, SNR {:.2f} dB, cosine {:.6f}, largest difference {:.3g}, {} of {} differ",
      100 * e.relative_error(), e.snr_db(), e.cosine(), e.max_abs, e.different, e.weights);
}

Json value_error_to_json(const ValueError& e) {
  return {{"relative_error", e.relative_error()},
          {"snr_db", figure_to_json(e.snr_db())},
          {"cosine", e.cosine()},
          {"max_abs", e.max_abs},
          {"weights", e.weights},
          {"different", e.different}};
}

}  // namespace twofour
