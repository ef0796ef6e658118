#include "lib/write/methods/layout_matrix.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include "formats/error.h"
#include "formats/layouts/layout_ops.h"
#include "formats/layouts/layouts.h"
#include "lib/recipe/artifact/manifest.h"

namespace twofour {

LayoutMatrix::LayoutMatrix(OutputMatrix what, std::string as, OutputScales under, Tiling cut,
                           std::string word, std::vector<size_t> tensors, std::vector<size_t> global_scales)
    : target(std::move(what)),
      layout(std::move(as)),
      scales(std::move(under)),
      tiling(cut),
      fold_name(std::move(word)),
      tensors_(std::move(tensors)),
      global_scales_(std::move(global_scales)) {
  with_layout(layout, [&]<class L>() { part_count_ = L::part_count; });
  set_rule(target.rule);
}

namespace {

/// The bits of the global scale of a source. Planning read them, or the work found them.
uint32_t raw_bits_of(const OutputScales& scales, const LayoutResult& found, size_t source) {
  return scales.is_computed(source) ? found.global_scales[source] : scales.raw_bits[source];
}

}  // namespace

std::vector<TensorInfo> LayoutMatrix::outputs(const Checkpoint&) const {
  std::vector<TensorInfo> all;
  with_layout(layout, [&]<class L>() {
    for (int p = 0; p < L::part_count; ++p) {
      const Part part = L::part(p, target.shape);
      const auto bytes = static_cast<uint64_t>(target.shape.e * part.bytes());
      all.push_back(
          {target.tensor_name(part.suffix), part.dtype, {target.shape.e, part.rows, part.cols}, 0, bytes});
    }
  });
  const auto scale_bytes = static_cast<uint64_t>(target.shape.e) * sizeof(float);
  all.push_back({target.tensor_name("global_scale"), DType::kF32, {target.shape.e}, 0, scale_bytes});
  return all;
}

std::vector<Unit> LayoutMatrix::units(const Checkpoint& source) const {
  const auto bytes_of = [&](int64_t e, int64_t rows, int64_t k) {
    const auto weights = static_cast<uint64_t>(rows * k);
    if (!is_computed(e)) return weights / 2 + weights / kGroup;
    uint64_t bytes = 0;
    for (size_t i = 0; i < target.sources_per_expert; ++i) {
      const SourceRows& s = target.sources[static_cast<size_t>(e) * target.sources_per_expert + i];
      bytes += *source.computed_from(source.nvfp4_modules()[s.module]);
    }
    return bytes / static_cast<uint64_t>(target.shape.n) * static_cast<uint64_t>(rows) *
           static_cast<uint64_t>(k) / static_cast<uint64_t>(target.shape.k);
  };
  // The unit for expert e and piece p has the index e * (pieces + 1) + p. After the pieces of an expert,
  // there is one more unit, which hashes its sources. Sources that are read in pieces cannot be hashed while
  // they are packed.
  const auto pieces = pieces_of(target, tiling);
  std::vector<Unit> all;
  for (int64_t e = 0; e < target.shape.e; ++e) {
    const uint64_t first = static_cast<uint64_t>(e) * (pieces.size() + 1);
    for (size_t p = 0; p < pieces.size(); ++p) {
      all.push_back({.index = first + p, .read = bytes_of(e, pieces[p].rows, pieces[p].k)});
    }
    if (pieces.size() > 1) {
      all.push_back({.index = first + pieces.size(),
                     .part = Unit::kNoPart,
                     .read = bytes_of(e, target.shape.n, target.shape.k)});
    }
  }
  // Global scales that the work finds are written by the units of their experts.
  if (!scales.computed.empty()) return all;
  const uint64_t scale_bytes = static_cast<uint64_t>(target.shape.e) * sizeof(float);
  all.push_back({.index = 0, .part = part_count_, .begin = 0, .end = scale_bytes});
  return all;
}

Json LayoutMatrix::empty_result() const {
  LayoutResult none{{}, std::vector<LayoutResult::Slice>(target.sources.size())};
  if (!scales.computed.empty()) none.global_scales.resize(target.sources.size());
  return none.to_json();
}

void LayoutMatrix::check_result(const Json& result) const {
  const LayoutResult found = LayoutResult::from_json(result);
  const size_t scale_count = scales.computed.size();
  for (const Json& note : found.solved) {
    if (!note.is_null()) encoded_from_json(note.at("result"));
  }
  const bool fits = found.solved.empty() || found.solved.size() == target.sources.size();
  if (fits && found.slices.size() == target.sources.size() && found.global_scales.size() == scale_count)
    return;
  throw Error(fmt::format("{}: expected hashes of {} sources and {} global scales, found {} and {}",
                          target.name, target.sources.size(), scale_count, found.slices.size(),
                          found.global_scales.size()));
}

namespace {

/// Adds the result of a source whose weights were chosen to its entry in twofour.json.
void add_solved(const Json& note, Json& source) {
  const EncodedResult found = encoded_from_json(note.at("result"));
  source["weights_xxh3_128"] = found.source.hex();  // the hash of the weights in float32
  Json quality = error_figures(found.error);
  if (!found.output.method.empty()) add_loss_figures(found.output, quality);
  source["quality"] = std::move(quality);
  if (note.contains("solver")) source["solver"] = note.at("solver");
}

void add_result(const Json& note, std::optional<EncodedResult>& sum) {
  const EncodedResult one = encoded_from_json(note.at("result"));
  if (!sum) sum.emplace();
  sum->error += one.error;
  sum->output += one.output;
}

}  // namespace

Json LayoutMatrix::entries(const Checkpoint& source, const Json& result,
                           const std::vector<Json>& tensors) const {
  const LayoutResult found = LayoutResult::from_json(result);
  Json sources = Json::array(), parts = Json::array();
  for (size_t i = 0; i < target.sources.size(); ++i) {
    const SourceRows& s = target.sources[i];
    const Nvfp4Linear& m = source.nvfp4_modules()[s.module];
    Json one = {{"module", m.name}, {"dialect", m.dialect->name}};
    if (m.dialect->stacked) {
      one["expert"] = s.expert;
      one["k_outer"] = m.k_outer;
    }
    one["rows"] = {s.first, s.step, s.count};
    one["global_scale_shape"] = source.tensors()[m.global_scale].shape;
    one["global_scale_bits"] = fmt::format("{:08x}", raw_bits_of(scales, found, i));
    one["codes_xxh3_128"] = found.slices[i].codes.hex();
    one["scales_xxh3_128"] = found.slices[i].scales.hex();
    if (!found.solved.empty() && !found.solved[i].is_null()) add_solved(found.solved[i], one);
    sources.push_back(std::move(one));
  }
  for (const Json& t : tensors) parts.push_back(t);
  const Shape& s = target.shape;
  const auto chosen = found.chosen();
  return Json::array(
      {Json{{"name", target.name},
            {"layout", layout},
            {"shape", {s.e, s.n, s.k}},
            {"gated", s.gated},
            {"quality", chosen ? error_figures(chosen->error) : quality_figures(found.quality)},
            {"tensors", std::move(parts)},
            {"sources", std::move(sources)}}});
}

std::string LayoutMatrix::content(const Json& result, std::span<const Hash128>) const {
  const LayoutResult found = LayoutResult::from_json(result);
  std::string text;
  for (size_t i = 0; i < found.slices.size(); ++i) {
    text += found.slices[i].codes.hex() + found.slices[i].scales.hex() +
            fmt::format("{:08x}", raw_bits_of(scales, found, i));
    if (found.solved.empty() || found.solved[i].is_null()) continue;
    text += encoded_from_json(found.solved[i].at("result")).source.hex();
  }
  return text;
}

std::vector<Transformation::StoredScale> LayoutMatrix::stored_scales() const {
  std::vector<StoredScale> all;
  for (size_t i = 0; i < global_scales_.size(); ++i) {
    all.push_back(
        {global_scales_[i], scales.is_computed(i) ? std::nullopt : std::optional(scales.raw_bits[i])});
  }
  return all;
}

std::vector<ModuleReport> LayoutMatrix::report(const Checkpoint&, const Json& result) const {
  const LayoutResult found = LayoutResult::from_json(result);
  ModuleReport report{target.name, target.shape, found.quality};
  for (const Json& note : found.solved) {
    if (!note.is_null()) add_result(note, report.encoded);
  }
  // Packing drops none of the weights that were chosen before.
  if (found.chosen()) report.quality.reset();
  return {std::move(report)};
}

std::optional<EncodedResult> LayoutResult::chosen() const {
  std::optional<EncodedResult> sum;
  for (const Json& note : solved) {
    if (note.is_null()) return std::nullopt;
    add_result(note, sum);
  }
  return sum;
}

void LayoutResult::take_solved(const Checkpoint& source, const OutputMatrix& target) {
  std::vector<Json> notes;
  bool any = false;
  for (const SourceRows& s : target.sources) {
    notes.push_back(source.computed_result(source.nvfp4_modules()[s.module]));
    any = any || !notes.back().is_null();
  }
  if (any) solved = std::move(notes);
}

Json LayoutResult::to_json() const {
  std::string hashes;
  for (const Slice& s : slices) hashes += s.codes.hex() + s.scales.hex();
  Json json = {{"quality", twofour::to_json(quality)}, {"slices", std::move(hashes)}};
  if (!global_scales.empty()) {
    std::string bits;
    for (const uint32_t one : global_scales) bits += fmt::format("{:08x}", one);
    json["global_scales"] = std::move(bits);
  }
  if (!solved.empty()) json["solved"] = solved;
  return json;
}

LayoutResult LayoutResult::from_json(const Json& json) {
  LayoutResult found{quality_from_json(json.at("quality")), {}};
  constexpr size_t kDigits = 32;  // digits of a hash
  const auto text = json.at("slices").get<std::string>();
  for (size_t at = 0; at + 2 * kDigits <= text.size(); at += 2 * kDigits) {
    found.slices.push_back({parse_hash("slices", text.substr(at, kDigits)),
                            parse_hash("slices", text.substr(at + kDigits, kDigits))});
  }
  constexpr size_t kBitDigits = 8;
  const auto bits = json.value("global_scales", "");
  for (size_t at = 0; at + kBitDigits <= bits.size(); at += kBitDigits) {
    found.global_scales.push_back(parse_bits("global_scales", bits.substr(at, kBitDigits)));
  }
  if (json.contains("solved")) found.solved = json.at("solved").get<std::vector<Json>>();
  return found;
}

SourceScale read_computed_scale(const Checkpoint& c, const LayoutMatrix& matrix, size_t source) {
  const SourceRows& s = matrix.target.sources[source];
  Problems problems;
  const SourceScale scale = read_global_scale(c, c.nvfp4_modules()[s.module], s.expert, problems);
  problems.refuse();
  return scale;
}

namespace {

int64_t part_bytes(const std::string& layout, int p, Shape shape) {
  int64_t bytes = 0;
  with_layout(layout, [&]<class L>() { bytes = L::part(p, shape).bytes(); });
  return bytes;
}

}  // namespace

std::vector<Piece> pieces_of(const OutputMatrix& target, const Tiling& tiling) {
  std::vector<Piece> pieces;
  for (int64_t r0 = 0; r0 < target.shape.n; r0 += tiling.row_step) {
    for (int64_t k0 = 0; k0 < target.shape.k; k0 += tiling.k_step) {
      pieces.push_back({k0, std::min(tiling.k_step, target.shape.k - k0), r0,
                        std::min(tiling.row_step, target.shape.n - r0)});
    }
  }
  return pieces;
}

Piece whole_piece(const OutputMatrix& target) { return {0, target.shape.k, 0, target.shape.n}; }

Shape piece_shape(const OutputMatrix& target, const Piece& piece) {
  return {1, piece.rows, piece.k, target.shape.gated};
}

SourceRows piece_rows(const SourceRows& source, const OutputMatrix& target, const Piece& piece) {
  // Stored rows of a gated matrix alternate between gate and up, so a range has the same number of each.
  const int64_t share = target.shape.gated ? 2 : 1;
  SourceRows rows = source;
  rows.first += piece.r0 / share * source.step;
  rows.count = piece.rows / share;
  rows.n0 = source.n0 == 0 ? 0 : piece.rows / share;
  return rows;
}

int64_t piece_offset(const std::string& layout, int p, const OutputMatrix& target, const Piece& piece) {
  // The rows before the piece also form a matrix, since the cut is along the outermost axis.
  const Shape s = target.shape;
  const int64_t rows = piece.r0 > 0 ? part_bytes(layout, p, {1, piece.r0, s.k, s.gated}) : 0;
  const int64_t inputs = piece.k0 > 0 ? part_bytes(layout, p, {1, s.n, piece.k0, s.gated}) : 0;
  return rows + inputs;
}

int64_t piece_bytes(const std::string& layout, int p, const OutputMatrix& target, const Piece& piece) {
  return part_bytes(layout, p, piece_shape(target, piece));
}

namespace {

/// The bytes of codes in one row block. They should still be in the L2 cache when they are packed.
constexpr int64_t kStripTarget = 512 << 10;
/// The least number of rows of a row block. The packer writes runs that are as long as a row block has rows.
constexpr int64_t kMinStripRows = 256;
/// Steps along K are multiples of the packer's tiles, which have 64 groups.
constexpr int64_t kStepGrain = 1024;

/// The size of a worker's buffers for one piece of an expert, in bytes. The row block that it reads does not
/// count.
uint64_t buffer_bytes(const OutputMatrix& target, const std::string& layout, const Tiling& t, bool k_outer) {
  int64_t bytes = 0;
  with_layout(layout, [&]<class L>() {
    bytes = layout_bytes<L>({1, t.row_step, t.k_step, target.shape.gated});
  });
  // The buffers hold codes and scales of all rows, once as stored and once transposed.
  if (k_outer) bytes += 2 * t.row_step * (t.k_step / 2 + t.k_step / 16);
  return static_cast<uint64_t>(bytes);
}

/// Half of `step`, rounded up to a multiple of `grain`.
int64_t halve(int64_t step, int64_t grain) { return (step / 2 + grain - 1) / grain * grain; }

}  // namespace

Tiling make_tiling(const OutputMatrix& target, const std::string& layout, bool k_outer,
                   const MemoryLimits& limits) {
  const Shape s = target.shape;
  Tiling t{s.k, s.n, s.n, 0};
  with_layout(layout, [&]<class L>() {
    constexpr bool along_k = L::outer == Axis::kK;
    int64_t& step = along_k ? t.k_step : t.row_step;
    constexpr int64_t grain = along_k ? kStepGrain : kTileAlignment;
    static_assert(grain % kTileAlignment == 0);
    while (step > grain && buffer_bytes(target, layout, t, k_outer) > limits.piece) step = halve(step, grain);
  });
  t.bytes = buffer_bytes(target, layout, t, k_outer);
  t.strip_rows = t.row_step;
  if (!k_outer)
    t.strip_rows = std::min(std::max(kMinStripRows, kStripTarget / (t.k_step / 2) / 64 * 64), s.n);
  if (!k_outer) t.bytes += static_cast<uint64_t>(t.strip_rows * (t.k_step / 2 + t.k_step / 16));
  return t;
}

}  // namespace twofour
