#include "lib/jobs/compress/layer_entries.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "kernels/device/check.h"
#include "kernels/floats/device_vectors.h"
#include "kernels/floats/float_multiply.h"

namespace twofour {
namespace {

/// Number of rows of a target offset that are computed in one go.
constexpr int64_t kTargetRows = 512;

/// The rows of a group's inputs that count, for one model or for both.
struct CountedRows {
  std::vector<float> x, d, r;  ///< [rows, k], [rows, k], [rows, n]
  std::vector<float> roots;    ///< square roots of weights
};

/// True if summing differences of outputs is less work than summing differences of inputs.
bool adds_outputs(const LayerEntry& e) {
  return e.adds && !e.planned.targets.empty() && e.planned.targets[0].n < e.planned.k;
}

/// The width of the residual rows that an entry needs, or 0.
int64_t residual_width(const LayerEntry& e) {
  return e.adds && !e.planned.targets.empty() ? e.planned.targets[0].n : 0;
}

std::span<const float> span_of(const FloatArray& a) { return {a.data(), a.size()}; }

/// The rows whose weights are above 0, the tokens of these rows, and the square roots of their weights.
struct WeightedRows {
  std::vector<int32_t> rows, tokens;
  std::vector<float> roots;

  WeightedRows(const LayerEntry& e, const SeenBatch& batch) {
    const auto count = static_cast<int64_t>(batch.compressed->input(e.group).size()) / e.planned.k;
    const std::vector<int64_t>& all = batch.compressed->tokens(e.group);
    for (int64_t row = 0; row < count; ++row) {
      const int64_t token = all.empty() ? row : all[static_cast<size_t>(row)];
      const float weight = batch.weights[static_cast<size_t>(token)];
      if (weight <= 0) continue;
      rows.push_back(static_cast<int32_t>(row));
      tokens.push_back(static_cast<int32_t>(token));
      roots.push_back(std::sqrt(weight));
    }
  }
};

std::vector<float> gather(std::span<const float> x, const std::vector<int32_t>& rows, int64_t width) {
  std::vector<float> out(rows.size() * static_cast<size_t>(width));
  for (size_t i = 0; i < rows.size(); ++i)
    std::copy_n(x.data() + rows[i] * width, width, out.data() + static_cast<int64_t>(i) * width);
  return out;
}

CountedRows counted_rows(const LayerEntry& e, const SeenBatch& batch) {
  WeightedRows weighted(e, batch);
  CountedRows counted;
  counted.x = gather(span_of(batch.compressed->input(e.group)), weighted.rows, e.planned.k);
  if (batch.dense != nullptr)
    counted.d = gather(span_of(batch.dense->input(e.group)), weighted.rows, e.planned.k);
  if (const int64_t n = residual_width(e); n > 0)
    counted.r = gather(span_of(*batch.residual), weighted.tokens, n);
  counted.roots = std::move(weighted.roots);
  return counted;
}

void scale_rows(std::vector<float>& rows, const std::vector<float>& factors) {
  const size_t width = factors.empty() ? 1 : rows.size() / factors.size();
  for (size_t i = 0; i < rows.size() && !factors.empty(); ++i) rows[i] *= factors[i / width];
}

/// The weights of the entry's linear, which are read once.
const float* weights_of(const LayerEntry& e, const Decoder& dense, EntrySums& sums) {
  if (sums.weights.size() > 0) return sums.weights.data();
  const PlannedEntry::Target& t = e.planned.targets[0];
  std::vector<float> weights(static_cast<size_t>(t.n * e.planned.k));
  dense.read_linear(t.linear, 0, t.n, weights);
  sums.weights.assign_from_host(weights);
  return sums.weights.data();
}

void add_rows(const LayerEntry& e, std::span<const float> x, std::span<const float> d,
              std::span<const float> r, const std::vector<float>& roots, const Decoder& dense,
              EntrySums& sums) {
  const int64_t k = e.planned.k, rows = static_cast<int64_t>(x.size()) / k, n = residual_width(e);
  if (rows == 0) return;
  sums.input.add(x, k, roots);
  if (e.planned.targets.empty()) return;
  check(d.size() == x.size(), "as many inputs of one model as of the other");
  std::vector<float> differences(x.size()), lacking, scaled;
  for (size_t i = 0; i < d.size(); ++i) differences[i] = d[i] - x[i];
  if (n > 0) lacking.assign(r.begin(), r.end());
  if (adds_outputs(e)) {
    std::vector<float> made(lacking.size());
    cpu::multiply(differences.data(), rows, weights_of(e, dense, sums), n, k, made.data(), n);
    for (size_t i = 0; i < lacking.size(); ++i) lacking[i] += made[i];
  }
  if (!roots.empty()) {
    scaled.assign(x.begin(), x.end());
    for (std::vector<float>* some : {&scaled, &differences, &lacking}) scale_rows(*some, roots);
    x = scaled;
  }
  if (!adds_outputs(e)) {
    sums.differences.resize(static_cast<size_t>(k * k));
    cpu::add_cross_products(x.data(), k, differences.data(), k, rows, sums.differences.data());
  }
  if (n == 0) return;
  sums.outputs.resize(static_cast<size_t>(n * k));
  cpu::add_cross_products(lacking.data(), n, x.data(), k, rows, sums.outputs.data());
}

/// Rows of a batch in device memory.
struct RowsOnDevice {
  const float *x = nullptr, *d = nullptr, *r = nullptr;
  int64_t count = 0;
};

/// Copies the rows whose weights are above 0 to the scratch memory.
RowsOnDevice gather_on_device(const LayerEntry& e, const SeenBatch& batch, const WeightedRows& weighted,
                              DeviceScratch& to, const cuda::DeviceStream& stream) {
  RowsOnDevice rows;
  rows.count = static_cast<int64_t>(weighted.rows.size());
  if (rows.count == 0) return rows;
  const size_t bytes = weighted.rows.size() * sizeof(int32_t);
  to.rows.reserve(bytes), to.tokens.reserve(bytes);
  cuda::copy_to_device(weighted.rows.data(), to.rows.as(), bytes, stream);
  cuda::copy_to_device(weighted.tokens.data(), to.tokens.as(), bytes, stream);
  to.roots.assign_from_host(weighted.roots);
  const auto gather = [&](const FloatArray& x, const cuda::DeviceMemory& ids, int64_t width,
                          FloatArray& out) {
    out.resize(static_cast<size_t>(rows.count * width));
    cuda::gather_rows(x.data(), ids.as<int32_t>(), rows.count, width, out.data(), stream.get());
    return out.data();
  };
  rows.x = gather(batch.compressed->input(e.group), to.rows, e.planned.k, to.x);
  if (batch.dense != nullptr) rows.d = gather(batch.dense->input(e.group), to.rows, e.planned.k, to.d);
  if (const int64_t n = residual_width(e); n > 0) rows.r = gather(*batch.residual, to.tokens, n, to.lacking);
  return rows;
}

/// Does the same as add_rows for rows in device memory.
void add_on_device(const LayerEntry& e, const SeenBatch& batch, const Decoder& dense, EntrySums& sums) {
  DeviceSums& device = *sums.input.device;
  DeviceScratch& scratch = *sums.scratch;
  const cuda::Stream stream = device.stream().get();
  const int64_t k = e.planned.k, n = residual_width(e);
  const FloatArray& seen = batch.compressed->input(e.group);
  RowsOnDevice rows{seen.data(), batch.dense != nullptr ? batch.dense->input(e.group).data() : nullptr,
                    batch.residual != nullptr ? batch.residual->data() : nullptr,
                    static_cast<int64_t>(seen.size()) / k};
  std::vector<float> roots;
  if (!batch.weights.empty()) {
    const WeightedRows weighted(e, batch);
    roots = weighted.roots;
    rows = gather_on_device(e, batch, weighted, scratch, device.stream());
  }
  if (rows.count == 0) return;
  const int64_t count = rows.count * k;
  const bool has_targets = !e.planned.targets.empty();
  sums.input.count_rows(rows.count, roots);
  device.find_largest(rows.x, count, sums.input.device_amax);
  if (has_targets) {
    check(batch.dense->input(e.group).size() == seen.size(), "as many inputs of one model as of the other");
    cuda::subtract_floats(rows.d, rows.x, count, scratch.d.resize(static_cast<size_t>(count)), stream);
  }
  if (n > 0 && roots.empty()) scratch.lacking.assign(rows.r, static_cast<size_t>(rows.count * n));
  if (adds_outputs(e)) {
    const float* weights = weights_of(e, dense, sums);
    device.set_rows(scratch.d.data(), rows.count, k);
    device.multiply(weights, n, scratch.made.resize(static_cast<size_t>(rows.count * n)));
    cuda::add_floats(scratch.lacking.data(), scratch.made.data(), rows.count * n, stream);
  }
  if (!roots.empty()) {
    const float* factors = scratch.roots.data();
    cuda::scale_rows(scratch.x.data(), factors, rows.count, k, stream);
    if (has_targets) cuda::scale_rows(scratch.d.data(), factors, rows.count, k, stream);
    if (n > 0) cuda::scale_rows(scratch.lacking.data(), factors, rows.count, n, stream);
  }
  if (has_targets && !adds_outputs(e)) {
    device.set_rows(scratch.d.data(), rows.count, k);
    device.add_cross_products(rows.x, k, sums.device_differences);
  }
  device.set_rows(rows.x, rows.count, k);
  device.add_products(sums.input.on_device);
  if (n > 0) device.add_cross_products(scratch.lacking.data(), n, sums.device_outputs);
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

SeenInputs::SeenInputs(size_t groups, const cuda::DeviceStream* stream) : wanted_(groups), tokens_(groups) {
  for (size_t i = 0; i < groups; ++i) inputs_.emplace_back(stream);
}

void SeenInputs::begin(std::vector<bool> wanted) {
  wanted_ = std::move(wanted);
  for (FloatArray& x : inputs_) x.resize(0);
  for (std::vector<int64_t>& of : tokens_) of.clear();
}

void SeenInputs::see_input(size_t group, std::span<const float> x, std::span<const int64_t> tokens) {
  if (!wanted_[group]) return;
  inputs_[group].assign_from_host(x);
  tokens_[group].assign(tokens.begin(), tokens.end());
}

bool SeenInputs::see_on_device(size_t group, const float* x, int64_t rows, int64_t k,
                               std::span<const int64_t> tokens, const cuda::DeviceStream& stream) {
  if (!inputs_[group].on_device()) return false;
  const auto count = static_cast<size_t>(rows * k);
  copy_floats(x, count, inputs_[group].resize(count), &stream);
  tokens_[group].assign(tokens.begin(), tokens.end());
  return true;
}

void EntrySums::finish() {
  input.finish();
  if (device_differences.bytes() > 0) differences = input.device->take(device_differences);
  if (device_outputs.bytes() > 0) outputs = input.device->take(device_outputs);
  weights = FloatArray();
}

void add_batch(const LayerEntry& e, const SeenBatch& batch, const Decoder& dense, EntrySums& sums) {
  if (sums.input.device != nullptr) return add_on_device(e, batch, dense, sums);
  if (!batch.weights.empty()) {
    const CountedRows counted = counted_rows(e, batch);
    return add_rows(e, counted.x, counted.d, counted.r, counted.roots, dense, sums);
  }
  add_rows(e, span_of(batch.compressed->input(e.group)),
           batch.dense == nullptr ? std::span<const float>{} : span_of(batch.dense->input(e.group)),
           batch.residual == nullptr ? std::span<const float>{} : span_of(*batch.residual), {}, dense, sums);
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
  const auto outputs = static_cast<uint64_t>(residual_width(e)) * k;
  numbers += adds_outputs(e) ? 2 * outputs : outputs;  // with W
  return numbers * sizeof(float);
}

}  // namespace twofour
