#include "tools/encoded_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tools/cli/command.h"
#include "tools/cli/figures_text.h"

namespace twofour {
namespace {

std::string error_text(const EncodeError& e) {
  if (e.error == 0) return "no loss";
  return fmt::format("relative error {:.3f} %, SNR {:.2f} dB", 100 * e.relative_error(), e.snr_db());
}

/// What pruning first is worth. Both errors are against the weights before either.
std::string gain_text(const EncodedResult& r) {
  return fmt::format("; pruned after quantizing: {}; gain {:.2f} dB", error_text(r.pruned_after),
                     r.error.snr_db() - r.pruned_after.snr_db());
}

Json error_to_json(const EncodeError& e) {
  return {{"relative_error", e.relative_error()}, {"snr_db", figure_to_json(e.snr_db())}};
}

}  // namespace

std::string encoded_text(const Plan& plan, const std::vector<EncodedResult>& results, bool each) {
  const bool pruned = !plan.recipe.pattern.empty();
  EncodedResult all;
  std::string text;
  size_t cast = 0;
  double worst = 0;
  std::string worst_name;
  for (size_t i = 0; i < results.size(); ++i) {
    const EncodedResult& r = results[i];
    all.error += r.error;
    all.pruned_after += r.pruned_after;
    cast += r.cast;
    if (r.error.relative_error() > worst) {
      worst = r.error.relative_error();
      worst_name = plan.matrices[i].name;
    }
    if (each) {
      text += fmt::format("{}: {}{}\n", printable_line(plan.matrices[i].name), error_text(r.error),
                          pruned ? gain_text(r) : "");
    }
  }
  text += fmt::format("weights: {}{}\n", error_text(all.error), pruned ? gain_text(all) : "");
  if (worst > 0)
    text += fmt::format("largest error: {:.3f} % in {}\n", 100 * worst, printable_line(worst_name));
  if (cast > 0) text += fmt::format("{} of {} matrices cast from MXFP4 without loss\n", cast, results.size());
  return text;
}

Json encoded_to_json(const Plan& plan, const EncodedResult& r) {
  Json json = {{"quality", error_to_json(r.error)}};
  if (!plan.recipe.pattern.empty()) json["quality"]["pruned_after"] = error_to_json(r.pruned_after);
  if (r.cast) json["cast"] = "exact";
  if (r.kept.compared) {
    json["kept"] = {{"bytes", r.kept.bytes},
                    {"codes_that_differ", r.kept.codes},
                    {"block_scales_that_differ", r.kept.scales}};
    if (!r.kept.first.empty()) json["kept"]["first"] = r.kept.first;
  }
  return json;
}

}  // namespace twofour
