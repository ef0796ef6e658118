#include "lib/write/encode/quantized_group.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "formats/error.h"
#include "formats/naming.h"
#include "lib/source/linears/expert_stacks.h"

namespace twofour {
namespace {

/// The largest number of bytes that the first pass over a matrix stores per row.
constexpr uint64_t kRowBytes = 8;

/// The bytes that the first pass stores per FP8 tile.
constexpr uint64_t kTileBytes = 32;

Json solver_entry(const EncodedMatrix& m, const EncodedResult& found) {
  return {{"method", found.output.method},
          {"sweeps", m.solving.sweeps},
          {"damping", m.solving.damping},
          {"statistics", m.solving.entry->name}};
}

}  // namespace

EncodeRule::Tile EncodeRule::tile(int64_t rows, int64_t k) const {
  if (scheme.granularity == Granularity::kTensor) return {rows, k};
  if (scheme.granularity == Granularity::kRow) return {1, k};
  return {scheme.rows, scheme.cols};
}

bool EncodeRule::masks_codes(const EncodedMatrix& m) const {
  return in_place && m.mask && m.solving.method == Solving::Method::kPlain;
}

bool EncodeRule::prunes_weights(const EncodedMatrix& m) const { return (prune || m.mask) && !masks_codes(m); }

const char* encoded_name(const EncodeRule& rule) {
  return rule.scheme.is_mxfp8() ? "MXFP8" : rule.scheme.format->name;
}

QuantizedGroup::QuantizedGroup(EncodeRule rule, std::shared_ptr<const FixedGlobalScales> kept,
                               const MemoryLimits& limits)
    : rule_(std::move(rule)), kept_(std::move(kept)), limits_(limits) {
  set_rule("belongs to a linear to quantize");
}

void QuantizedGroup::add_part(size_t matrix, EncodedPart part, TensorInfo info) {
  info.end = tensor_bytes(info.name, info.dtype, info.shape);
  matrices_[matrix].parts[static_cast<size_t>(part)] = static_cast<int>(infos_.size());
  infos_.push_back(std::move(info));
}

int64_t QuantizedGroup::strip_rows(const Linear& m) const {
  const auto most = static_cast<int64_t>(limits_.piece / kQuantizeStripBytes);
  // A row that is stored across the file is read in K pieces, so many rows are read in one go.
  const int64_t strip = rule_.statistics ? limits_.solved_weights : kQuantizeStripWeights;
  const int64_t weights = m.reads_across() ? most : std::min(most, strip);
  return std::clamp<int64_t>(weights / m.k, 1, m.n);
}

std::vector<Unit> QuantizedGroup::units(const Checkpoint& source) const {
  uint64_t read = 0;
  for (const EncodedMatrix& m : matrices_) {
    const Linear& from = *m.source;
    const uint64_t bytes = source.tensors()[from.weight].bytes() * static_cast<uint64_t>(m.rows) /
                           static_cast<uint64_t>(from.e * from.n);
    // Row blocks are read once for the scales, and once more to quantize.
    read += strip_rows(from) < from.n ? 2 * bytes : bytes;
  }
  return {{.read = read}};
}

uint64_t QuantizedGroup::worker_bytes() const {
  uint64_t most = 0;
  for (const EncodedMatrix& m : matrices_) {
    uint64_t tiles = 0;
    if (rule_.is_tiled()) {
      const EncodeRule::Tile tile = rule_.tile(m.rows, m.k);
      tiles = static_cast<uint64_t>((m.source->n / tile.rows + 1) * (m.k / tile.cols + 1));
    }
    const uint64_t solving = solving_bytes(m.solving);
    most = std::max(most, solving + static_cast<uint64_t>(strip_rows(*m.source) * m.k) * kQuantizeStripBytes +
                              static_cast<uint64_t>(m.source->n) * kRowBytes + tiles * kTileBytes);
  }
  return most;
}

const EncodedMatrix& QuantizedGroup::matrix_of(int part) const {
  const auto has = [&](const EncodedMatrix& m) {
    return std::find(m.parts.begin(), m.parts.end(), part) != m.parts.end();
  };
  return *std::find_if(matrices_.begin(), matrices_.end(), has);
}

std::string QuantizedGroup::decision(int part) const {
  return matrix_of(part).part(EncodedPart::kBias) == part ? "copy" : rule_.to;
}

std::string QuantizedGroup::origin(const Checkpoint& source, int part) const {
  return source.where(matrix_of(part).source->weight);
}

Json QuantizedGroup::empty_result() const {
  Json json = Json::array();
  for (size_t i = 0; i < matrices_.size(); ++i) json.push_back(to_json(EncodedResult{}));
  return json;
}

void QuantizedGroup::check_result(const Json& result) const {
  if (!result.is_array() || result.size() != matrices_.size()) {
    throw Error(fmt::format("{}: expected {} results, found others", matrices_[0].name, matrices_.size()));
  }
  for (const Json& one : result) encoded_from_json(one);
}

Json QuantizedGroup::solved_note(size_t matrix, const EncodedResult& found) const {
  Json note = {{"result", to_json(found)}};
  if (!found.output.method.empty()) note["solver"] = solver_entry(matrices_[matrix], found);
  return note;
}

Json QuantizedGroup::entries(const Checkpoint& source, const Json& result,
                             const std::vector<Json>& tensors) const {
  Json all = Json::array();
  for (size_t i = 0; i < matrices_.size(); ++i) {
    const EncodedMatrix& m = matrices_[i];
    const EncodedResult found = encoded_from_json(result.at(i));
    Json quality = error_figures(found.error);
    const bool is_solved = !found.output.method.empty();
    if (rule_.prunes_weights(m) && !is_solved) quality["pruned_after"] = error_figures(found.pruned_after);
    if (is_solved) add_loss_figures(found.output, quality);
    if (found.tiles.count > 0) {
      quality["tiles"] = found.tiles.count;
      quality["inexact_tiles"] = found.tiles.inexact;
    }
    if (found.lost > 0) quality["lost_weights"] = found.lost;
    Json entry = {{"name", m.name},
                  {"layout", rule_.to},
                  {"shape", {1, m.rows, m.k}},
                  {"gated", false},
                  {"quality", std::move(quality)}};
    if (found.global_scale != 0) entry["global_scale_bits"] = fmt::format("{:08x}", found.global_scale);
    if (is_solved) entry["solver"] = solver_entry(m, found);
    if (found.cast) entry["cast"] = found.tiles.inexact == 0 ? "exact" : "rounded";
    Json parts = Json::array();
    for (size_t p = 0; p < tensors.size(); ++p) {
      if (&matrix_of(static_cast<int>(p)) == &m) parts.push_back(tensors[p]);
    }
    entry["tensors"] = std::move(parts);
    Json from = {{"module", m.source->name},
                 {"format", m.source->format->key},
                 {"dtype", dtype_name(source.tensors()[m.source->weight].dtype)}};
    if (m.source->stacked) {
      from["expert"] = m.expert;
      from["rows"] = {{"first", m.first}, {"step", m.step}};
    }
    from["weights_xxh3_128"] = found.source.hex();  // the hash of the weights in float32
    entry["sources"] = Json::array({std::move(from)});
    all.push_back(std::move(entry));
  }
  return all;
}

std::string QuantizedGroup::content(const Json& result, std::span<const Hash128> outputs) const {
  std::string text;
  for (size_t i = 0; i < matrices_.size(); ++i) {
    text += encoded_from_json(result.at(i)).source.hex();
    const int bias = matrices_[i].part(EncodedPart::kBias);
    if (bias >= 0) text += outputs[static_cast<size_t>(bias)].hex();
    text += fmt::format("{}", matrices_[i].input_scale);
  }
  return text;
}

std::vector<ModuleReport> QuantizedGroup::report(const Checkpoint&, const Json& result) const {
  std::vector<ModuleReport> all;
  for (size_t i = 0; i < matrices_.size(); ++i) {
    const EncodedMatrix& m = matrices_[i];
    EncodedResult found = encoded_from_json(result.at(i));
    const bool prunes_first = rule_.prunes_weights(m) && found.output.method.empty();
    all.push_back({m.name, {1, m.rows, m.k}, std::nullopt, std::move(found), prunes_first});
  }
  return all;
}

std::vector<StackPart> stack_parts(const Checkpoint& c, const std::string& name, int64_t rows) {
  const auto parsed = parse_module_name(name);
  if (!parsed || parsed->expert >= 0) return {};
  const NamingRule& naming = *parsed->naming;
  if (parsed->projection == Projection::kDown) return {{naming.down, 0, 1, rows}};
  if (parsed->projection != Projection::kGateUp || rows % 2 != 0) return {};
  const int64_t half = rows / 2;
  if (gate_up_order(c, parsed->block) == GateUpRows::kInterleaved) {
    return {{naming.gate, 0, 2, half}, {naming.up, 1, 2, half}};
  }
  return {{naming.gate, 0, 1, half}, {naming.up, half, 1, half}};
}

std::string expert_name(const std::string& stack, int64_t expert, const char* leaf) {
  return fmt::format("{}.{}.{}", parse_module_name(stack)->block, expert, leaf);
}

}  // namespace twofour
