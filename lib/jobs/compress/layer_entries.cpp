#include "lib/jobs/compress/layer_entries.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/device/check.h"
#include "kernels/floats/float_multiply.h"

namespace twofour {
namespace {

/// Number of rows of a target offset that are computed in one go.
constexpr int64_t kTargetRows = 512;

/// The rows of a group's inputs that count, for one model or for both.
struct CountedRows {
  std::vector<float> x, d, r;  ///< [rows, k], [rows, k], [rows, n]
  std::vector<float> roots;    ///< square roots of weights; if empty, every weight is 1
};

void append_row(std::vector<float>& to, std::span<const float> rows, size_t row, size_t width) {
  const auto from = rows.begin() + static_cast<int64_t>(row * width);
  to.insert(to.end(), from, from + static_cast<int64_t>(width));
}

/// The rows whose weights are above 0.
CountedRows weighted_rows(const LayerEntry& e, const SeenBatch& batch) {
  CountedRows counted;
  const std::vector<float>& x = batch.compressed->input(e.group);
  const std::vector<int64_t>& tokens = batch.compressed->tokens(e.group);
  const auto k = static_cast<size_t>(e.planned.k);
  const size_t n = e.adds && !e.planned.targets.empty() ? static_cast<size_t>(e.planned.targets[0].n) : 0;
  for (size_t row = 0; row < x.size() / k; ++row) {
    const size_t token = tokens.empty() ? row : static_cast<size_t>(tokens[row]);
    if (batch.weights[token] <= 0) continue;
    append_row(counted.x, x, row, k);
    if (batch.dense != nullptr) append_row(counted.d, batch.dense->input(e.group), row, k);
    if (n > 0) append_row(counted.r, batch.residual, token, n);
    counted.roots.push_back(std::sqrt(batch.weights[token]));
  }
  return counted;
}

void scale_rows(std::vector<float>& rows, const std::vector<float>& factors) {
  const size_t width = factors.empty() ? 1 : rows.size() / factors.size();
  for (size_t i = 0; i < rows.size() && !factors.empty(); ++i) rows[i] *= factors[i / width];
}

/// True if summing differences of outputs is less work than summing differences of inputs.
bool adds_outputs(const LayerEntry& e) {
  return e.adds && !e.planned.targets.empty() && e.planned.targets[0].n < e.planned.k;
}

/// Adds differences [rows, k] W' to `lacking` [rows, n].
void add_outputs(const LayerEntry& e, const Decoder& dense, const std::vector<float>& differences,
                 DeviceSums* device, std::vector<float>& lacking) {
  const PlannedEntry::Target& t = e.planned.targets[0];
  const int64_t k = e.planned.k, rows = static_cast<int64_t>(differences.size()) / k;
  std::vector<float> weights(static_cast<size_t>(t.n * k)), made(lacking.size());
  dense.read_linear(t.linear, 0, t.n, weights);
  if (device != nullptr) {
    device->multiply(differences, weights, t.n, k, made);
  } else {
    cpu::multiply(differences.data(), rows, weights.data(), t.n, k, made.data(), t.n);
  }
  for (size_t i = 0; i < lacking.size(); ++i) lacking[i] += made[i];
}

void add_rows(const LayerEntry& e, std::span<const float> x, std::vector<float> d, std::span<const float> r,
              const std::vector<float>& roots, const Decoder& dense, EntrySums& sums) {
  const int64_t k = e.planned.k, rows = static_cast<int64_t>(x.size()) / k;
  if (rows == 0) return;
  sums.input.add(x, k, roots);
  if (e.planned.targets.empty()) return;
  check(d.size() == x.size(), "as many inputs of one model as of the other");
  for (size_t i = 0; i < d.size(); ++i) d[i] -= x[i];
  std::vector<float> lacking;
  if (e.adds) lacking.assign(r.begin(), r.end());
  if (adds_outputs(e)) add_outputs(e, dense, d, sums.input.device, lacking);
  std::vector<float> scaled;
  if (!roots.empty()) {
    scaled.assign(x.begin(), x.end());
    for (std::vector<float>* some : {&scaled, &d, &lacking}) scale_rows(*some, roots);
    x = scaled;
  }
  DeviceSums* device = sums.input.device;
  if (!adds_outputs(e) && device != nullptr) {
    device->add_cross_products(x, k, d, k, sums.device_differences);
  } else if (!adds_outputs(e)) {
    sums.differences.resize(static_cast<size_t>(k * k));
    cpu::add_cross_products(x.data(), k, d.data(), k, rows, sums.differences.data());
  }
  if (!e.adds) return;
  const int64_t n = e.planned.targets[0].n;
  if (device != nullptr) return device->add_cross_products(lacking, n, x, k, sums.device_outputs);
  sums.outputs.resize(static_cast<size_t>(n * k));
  cpu::add_cross_products(lacking.data(), n, x.data(), k, rows, sums.outputs.data());
}

}  // namespace

std::vector<LayerEntry> layer_entries(const Decoder& model, const std::vector<InputGroup>& groups,
                                      const std::set<std::string>& linears, bool apart, bool targets) {
  std::vector<LayerEntry> entries;
  LayerEntry shared{{}, LayerStage::kDown};
  for (size_t g = 0; g < groups.size(); ++g) {
    const InputGroup& group = groups[g];
    std::vector<std::vector<std::string>> members;
    for (const std::string& linear : group.linears) {
      if (!linears.contains(linear)) continue;
      if (apart || members.empty()) members.emplace_back();
      members.back().push_back(linear);
    }
    for (std::vector<std::string>& some : members) {
      LayerEntry e{{some.front(), some, group.k, apart ? 1 : group.times}, group.stage, g, group.adds};
      for (const std::string& linear : some) {
        if (targets) e.planned.targets.push_back({linear, model.rows_of_linear(linear)});
      }
      if (group.expert >= 0) {
        shared.planned.name = group.block + ".down_proj";
        shared.planned.k = group.k;
        shared.planned.linears.push_back(some.front());
      }
      entries.push_back(std::move(e));
    }
  }
  if (!shared.planned.linears.empty()) entries.push_back(std::move(shared));
  return entries;
}

void EntrySums::finish() {
  input.finish();
  if (device_differences.bytes() > 0) differences = input.device->take(device_differences);
  if (device_outputs.bytes() > 0) outputs = input.device->take(device_outputs);
}

void add_batch(const LayerEntry& e, const SeenBatch& batch, const Decoder& dense, EntrySums& sums) {
  if (!batch.weights.empty()) {
    const CountedRows counted = weighted_rows(e, batch);
    return add_rows(e, counted.x, counted.d, counted.r, counted.roots, dense, sums);
  }
  add_rows(e, batch.compressed->input(e.group),
           batch.dense == nullptr ? std::vector<float>{} : batch.dense->input(e.group), batch.residual, {},
           dense, sums);
}

void write_entry(const StatisticsWriter& writer, const Decoder& dense, const LayerEntry& e,
                 const EntrySums& sums) {
  writer.write(e.planned, sums.input);
  const int64_t k = e.planned.k;
  const auto factor =
      static_cast<float>(static_cast<double>(e.planned.times) / sums.input.mean_weight(e.planned.name));
  std::vector<float> weights, rows;
  for (const PlannedEntry::Target& t : e.planned.targets) {
    for (int64_t row = 0; row < t.n; row += kTargetRows) {
      const int64_t count = std::min(kTargetRows, t.n - row);
      weights.resize(static_cast<size_t>(count * k));
      rows.assign(weights.size(), 0.0f);
      if (!sums.differences.empty()) {
        dense.read_linear(t.linear, row, row + count, weights);
        if (sums.input.device != nullptr) {
          sums.input.device->multiply(weights, sums.differences, k, k, rows);
        } else {
          cpu::multiply(weights.data(), count, sums.differences.data(), k, k, rows.data(), k);
        }
      }
      for (size_t i = 0; i < rows.size(); ++i) {
        if (!sums.outputs.empty()) rows[i] += sums.outputs[static_cast<size_t>(row * k) + i];
        rows[i] *= factor;
      }
      writer.write_target(t.linear, row, k, rows);
    }
  }
}

uint64_t bytes_of_sums(const LayerEntry& e) {
  const auto k = static_cast<uint64_t>(e.planned.k);
  uint64_t numbers = k * k;
  if (!e.planned.targets.empty() && !adds_outputs(e)) numbers += k * k;
  if (e.adds && !e.planned.targets.empty()) numbers += k * static_cast<uint64_t>(e.planned.targets[0].n);
  return numbers * sizeof(float);
}

}  // namespace twofour
