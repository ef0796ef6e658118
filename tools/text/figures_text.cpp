#include "tools/text/figures_text.h"

#include <fmt/format.h>

#include <cmath>
#include "tools/cli/command.h"

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

namespace {

std::string error_text(const EncodeError& e) {
  if (e.error == 0) return "no loss";
  return fmt::format("relative error {:.3f} %, SNR {:.2f} dB", 100 * e.relative_error(), e.snr_db());
}

}  // namespace

std::string chosen_text(const EncodeError& e) { return "chosen by statistics or masks: " + error_text(e); }

Json encode_error_to_json(const EncodeError& e) {
  return {{"relative_error", e.relative_error()}, {"snr_db", figure_to_json(e.snr_db())}};
}

namespace {

/// A text about the gain of pruning before quantizing. Both errors are relative to the original weights.
std::string gain_text(const EncodedResult& r) {
  return fmt::format("; pruned after quantizing: {}; gain {:.2f} dB", error_text(r.pruned_after),
                     r.error.snr_db() - r.pruned_after.snr_db());
}

/// A text about the output error: ", output error 3.100 % (relative loss 0.000961), held out 3.3 %
/// (0.00109)". Empty without statistics.
std::string output_text(const OutputLoss& loss) {
  if (loss.method.empty()) return "";
  std::string text = fmt::format(", output error {:.3f} % (relative loss {:.3g})",
                                 100 * std::sqrt(loss.relative()), loss.relative());
  if (loss.heldout_energy > 0) {
    text += fmt::format(", held out {:.3f} % ({:.3g})", 100 * std::sqrt(loss.heldout_relative()),
                        loss.heldout_relative());
  }
  return text;
}

Json error_to_json(const EncodeError& e) {
  return {{"relative_error", e.relative_error()}, {"snr_db", figure_to_json(e.snr_db())}};
}

}  // namespace

std::string encoded_text(const std::vector<ModuleReport>& modules, bool each) {
  bool pruned = false;
  EncodedResult all;
  std::string text;
  size_t cast = 0, count = 0, solved = 0;
  double worst = 0;
  std::string worst_name;
  for (const ModuleReport& m : modules) {
    if (!m.encoded) continue;
    const EncodedResult& r = *m.encoded;
    ++count;
    pruned = pruned || m.prunes_first;
    all.error += r.error;
    all.pruned_after += r.pruned_after;
    cast += r.cast && r.tiles.count == 0;
    all.tiles.count += r.tiles.count;
    all.tiles.inexact += r.tiles.inexact;
    all.output += r.output;
    solved += !r.output.method.empty();
    if (r.error.relative_error() > worst) {
      worst = r.error.relative_error();
      worst_name = m.name;
    }
    if (each) {
      text += fmt::format("{}: {}{}{}\n", printable_line(m.name), error_text(r.error),
                          m.prunes_first ? gain_text(r) : "", output_text(r.output));
    }
  }
  if (count == 0) return text;
  text += fmt::format("weights: {}{}\n", error_text(all.error), pruned ? gain_text(all) : "");
  if (solved > 0) {
    text += fmt::format(
        "outputs of {} of {} matrices by their statistics{}; this, not the weights' error, says what the "
        "model loses\n",
        solved, count, output_text(all.output));
  }
  if (worst > 0)
    text += fmt::format("largest error: {:.3f} % in {}\n", 100 * worst, printable_line(worst_name));
  if (all.tiles.count > 0) {
    const uint64_t exact = all.tiles.count - all.tiles.inexact;
    text += fmt::format("{} of {} tiles exact ({:.1f} %)\n", exact, all.tiles.count,
                        100 * static_cast<double>(exact) / static_cast<double>(all.tiles.count));
  }
  if (cast > 0) text += fmt::format("{} of {} matrices cast from MXFP4 without loss\n", cast, count);
  return text;
}

Json encoded_to_json(const ModuleReport& module) {
  const EncodedResult& r = *module.encoded;
  Json json = {{"quality", error_to_json(r.error)}};
  if (module.prunes_first) json["quality"]["pruned_after"] = error_to_json(r.pruned_after);
  if (!r.output.method.empty()) {
    json["solver"] = {{"method", r.output.method}};
    json["quality"]["relative_output_loss"] = r.output.relative();
    if (r.output.heldout_energy > 0) json["quality"]["heldout_output_loss"] = r.output.heldout_relative();
    if (r.output.expected_loss > 0) json["quality"]["expected_loss"] = r.output.expected_loss;
  }
  if (r.cast) json["cast"] = r.tiles.inexact == 0 ? "exact" : "rounded";
  if (r.tiles.count > 0) {
    json["quality"]["tiles"] = r.tiles.count;
    json["quality"]["inexact_tiles"] = r.tiles.inexact;
  }
  if (r.lost > 0) json["quality"]["lost_weights"] = r.lost;
  if (r.kept.compared) {
    json["kept"] = {{"bytes", r.kept.bytes},
                    {"codes_that_differ", r.kept.codes},
                    {"block_scales_that_differ", r.kept.scales}};
    if (!r.kept.first.empty()) json["kept"]["first"] = r.kept.first;
  }
  return json;
}

}  // namespace twofour
