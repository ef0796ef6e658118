#include "lib/look/metrics/quality.h"

#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <limits>

#include "kernels/numbers/quantize.h"

namespace twofour {

void Quality::add(const PruneStats& stats, double global_scale) {
  const double unit = 0x1p-20 * global_scale * global_scale;
  energy += static_cast<double>(stats.energy) * unit;
  kept_energy += static_cast<double>(stats.kept_energy) * unit;
  quads += stats.quads;
  tied += stats.tied;
}

Quality& Quality::operator+=(const Quality& other) {
  energy += other.energy;
  kept_energy += other.kept_energy;
  quads += other.quads;
  tied += other.tied;
  fold_energy += other.fold_energy;
  fold_error += other.fold_error;
  return *this;
}

double Quality::relative_error() const { return energy > 0 ? std::sqrt((energy - kept_energy) / energy) : 0; }

double Quality::snr_db() const {
  if (energy <= kept_energy) return std::numeric_limits<double>::infinity();
  return 10 * std::log10(energy / (energy - kept_energy));
}

double Quality::cosine() const { return std::sqrt(retained_energy()); }

void EncodeError::add(std::span<const float> weights, std::span<const float> back, int64_t k, Isa isa) {
  const auto row = static_cast<size_t>(k);
  for (size_t at = 0; at < weights.size(); at += row) {
    const QuantizeError sums = quantize_error_of(weights.subspan(at, row), back.subspan(at, row), isa);
    energy += sums.weights_squared;
    error += sums.errors_squared;
  }
}

void EncodeError::add_exact(std::span<const float> weights, int64_t k, Isa isa) {
  const auto row = static_cast<size_t>(k);
  for (size_t at = 0; at < weights.size(); at += row) {
    energy += sum_of_squares(weights.subspan(at, row), isa);
  }
}

EncodeError& EncodeError::operator+=(const EncodeError& other) {
  energy += other.energy;
  error += other.error;
  return *this;
}

double EncodeError::relative_error() const { return energy > 0 ? std::sqrt(error / energy) : 0; }

double EncodeError::snr_db() const {
  if (error <= 0) return std::numeric_limits<double>::infinity();
  return 10 * std::log10(energy / error);
}

namespace {

/// A figure, rounded to `digits` significant digits. JSON null if it is not finite.
Json figure(double value, int digits) {
  if (!std::isfinite(value)) return nullptr;
  return std::strtod(fmt::format("{:.{}g}", value, digits).c_str(), nullptr);
}

Json error_to_json(const EncodeError& e) { return Json::array({e.energy, e.error}); }
EncodeError error_from_json(const Json& json) { return {json.at(0).get<double>(), json.at(1).get<double>()}; }

}  // namespace

Json to_json(const Quality& q) {
  return Json::array({q.energy, q.kept_energy, q.quads, q.tied, q.fold_energy, q.fold_error});
}

Quality quality_from_json(const Json& json) {
  return {.energy = json.at(0).get<double>(),
          .kept_energy = json.at(1).get<double>(),
          .quads = whole_number<uint64_t>(json.at(2)),
          .tied = whole_number<uint64_t>(json.at(3)),
          .fold_energy = json.at(4).get<double>(),
          .fold_error = json.at(5).get<double>()};
}

Json quality_figures(const Quality& q) {
  Json json = {{"retained_energy", figure(q.retained_energy(), 9)},
               {"relative_error", figure(q.relative_error(), 9)},
               {"snr_db", figure(q.snr_db(), 6)},
               {"cosine", figure(q.cosine(), 9)},
               {"tied_share", figure(q.tied_share(), 9)}};
  if (q.fold_energy > 0) json["fold_relative_error"] = figure(std::sqrt(q.fold_error / q.fold_energy), 9);
  return json;
}

OutputLoss& OutputLoss::operator+=(const OutputLoss& other) {
  if (method.empty()) method = other.method;
  loss += other.loss;
  energy += other.energy;
  heldout_loss += other.heldout_loss;
  heldout_energy += other.heldout_energy;
  expected_loss += other.expected_loss;
  target_loss += other.target_loss;
  rounded_loss += other.rounded_loss;
  return *this;
}

void add_loss_figures(const OutputLoss& loss, Json& quality) {
  quality["relative_output_loss"] = figure(loss.relative(), 6);
  if (loss.heldout_energy > 0) quality["heldout_output_loss"] = figure(loss.heldout_relative(), 6);
  if (loss.expected_loss > 0) quality["expected_loss"] = figure(loss.expected_loss, 6);
}

Json to_json(const EncodedResult& r) {
  Json findings = Json::array();
  for (const Finding& f : r.findings) {
    findings.push_back(Json::array({static_cast<int>(f.severity), f.id, f.where, f.message}));
  }
  Json json = {{"source", r.source.hex()},
               {"global_scale", r.global_scale},
               {"cast", r.cast},
               {"error", error_to_json(r.error)},
               {"pruned_after", error_to_json(r.pruned_after)},
               {"findings", std::move(findings)}};
  if (!r.output.method.empty())
    json["output"] = Json::array({r.output.method, r.output.loss, r.output.energy, r.output.heldout_loss,
                                  r.output.heldout_energy, r.output.expected_loss});
  if (r.output.rounded_loss > 0) {
    json["output"].push_back(r.output.target_loss);
    json["output"].push_back(r.output.rounded_loss);
  }
  if (r.tiles.count > 0) json["tiles"] = Json::array({r.tiles.count, r.tiles.inexact});
  if (r.lost > 0) json["lost"] = r.lost;
  if (r.kept.compared) json["kept"] = Json::array({r.kept.codes, r.kept.scales, r.kept.bytes, r.kept.first});
  return json;
}

EncodedResult encoded_from_json(const Json& json) {
  EncodedResult r;
  r.source = parse_hash("source", json.at("source").get<std::string>());
  r.global_scale = whole_number<uint32_t>(json.at("global_scale"));
  r.cast = json.at("cast").get<bool>();
  r.error = error_from_json(json.at("error"));
  r.pruned_after = error_from_json(json.at("pruned_after"));
  for (const Json& f : json.at("findings")) {
    const auto severity = static_cast<Severity>(whole_number<int>(f.at(0)));
    r.findings.push_back(
        {severity, f.at(1).get<std::string>(), f.at(2).get<std::string>(), f.at(3).get<std::string>()});
  }
  if (json.contains("output")) {
    const Json& output = json.at("output");
    r.output = {output.at(0).get<std::string>(), output.at(1).get<double>(), output.at(2).get<double>(),
                output.at(3).get<double>(),      output.at(4).get<double>(), output.at(5).get<double>()};
    if (output.size() > 6) {
      r.output.target_loss = output.at(6).get<double>();
      r.output.rounded_loss = output.at(7).get<double>();
    }
  }
  if (json.contains("tiles")) {
    r.tiles = {whole_number<uint64_t>(json.at("tiles").at(0)),
               whole_number<uint64_t>(json.at("tiles").at(1))};
  }
  if (json.contains("lost")) r.lost = whole_number<uint64_t>(json.at("lost"));
  if (json.contains("kept")) {
    const Json& kept = json.at("kept");
    r.kept = {true, whole_number<uint64_t>(kept.at(0)), whole_number<uint64_t>(kept.at(1)),
              whole_number<uint64_t>(kept.at(2)), kept.at(3).get<std::string>()};
  }
  return r;
}

Json error_figures(const EncodeError& e) {
  return {{"relative_error", figure(e.relative_error(), 9)}, {"snr_db", figure(e.snr_db(), 6)}};
}

}  // namespace twofour
