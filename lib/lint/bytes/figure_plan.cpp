#include "lib/lint/bytes/figures.h"

#include <algorithm>
#include <array>

#include "formats/atom.h"
#include "formats/weight_dialect.h"

namespace twofour {

namespace {

int64_t words_of(int64_t codes) { return (codes + kInt4Pack - 1) / kInt4Pack; }

/// True if packed words hold codes of four bits. Words with codes of other widths have the same names.
bool is_int4(const LintInput& s, const WeightDialect& d, const std::string& module, const TensorInfo& words) {
  if (words.shape.size() != 2) return false;
  const auto sizes = [&](const char* suffix) -> std::vector<int64_t> {
    const auto tensor = suffix != nullptr ? s.find(module + suffix) : std::nullopt;
    return tensor ? s.tensors[*tensor].shape : std::vector<int64_t>();
  };
  const int64_t packed = words.shape[1];
  if (d.shape == nullptr) {  // AWQ packs codes along N; GPTQ packs only zero points so
    const std::vector<int64_t> scales = sizes(d.scale), zeros = sizes(d.zero_points);
    if (scales.size() != 2) return false;
    const bool along_k = packed == scales[1] && zeros.size() == 2;
    return words_of(scales[1]) == (along_k ? zeros[1] : packed);
  }
  const auto shape = s.find(module + d.shape);
  if (!shape || s.tensors[*shape].dtype != DType::kI64 || s.tensors[*shape].bytes() != 2 * sizeof(int64_t) ||
      !s.whole[*shape])
    return false;
  std::array<int64_t, 2> dims{};
  s.read(*shape, 0, {reinterpret_cast<uint8_t*>(dims.data()), sizeof(dims)});
  return dims[1] > 0 && words_of(dims[1]) == packed;
}

}  // namespace

ValueFormat value_format(const LintInput& s, size_t tensor) {
  const TensorInfo& t = s.tensors[tensor];
  for (const WeightDialect& d : weight_dialects()) {
    if (!d.format->coded || !t.name.ends_with(d.weight)) continue;
    if (!d.weight_types.has(t.dtype) || d.scale == nullptr) continue;
    const size_t stem = t.name.size() - std::string_view(d.weight).size();
    const auto scale = s.find(t.name.substr(0, stem) + d.scale);
    if (!scale || !d.scale_types.has(s.tensors[*scale].dtype)) continue;
    if (!fits_scales(d, t.shape, s.tensors[*scale].shape)) continue;
    if (d.format->integers && !is_int4(s, d, t.name.substr(0, stem), t)) continue;
    // A scale for 32 weights is not known without the global one.
    if (d.format->global_scale) return {NumberKind::kE2m1};
    return {d.format->sixes      ? NumberKind::kE2m3
            : d.format->pairs    ? NumberKind::kE2m1
            : d.format->integers ? NumberKind::kInt4
                                 : NumberKind::kE4m3,
            scale};
  }
  switch (t.dtype) {
    case DType::kF8E4M3:
      return {NumberKind::kE4m3};
    case DType::kI8: {  // INT8 of compressed-tensors
      if (!t.name.ends_with(".weight")) return {};
      const auto scale = s.find(t.name + "_scale");
      return scale && is_float(s.tensors[*scale].dtype) ? ValueFormat{NumberKind::kInt8, scale}
                                                        : ValueFormat{};
    }
    case DType::kBF16:
      return {NumberKind::kBf16};
    case DType::kF16:
      return {NumberKind::kF16};
    case DType::kF32:
      return {NumberKind::kF32};
    default:
      return {};
  }
}

MatrixPlan plan_module_figures(const Nvfp4Linear& m) {
  const auto n = static_cast<uint64_t>(m.n), k = static_cast<uint64_t>(m.k);
  MatrixPlan plan;
  plan.kind = NumberKind::kE2m1;
  plan.matrices = static_cast<uint64_t>(m.e);
  plan.lines = m.k_outer ? k / kGroup : n;
  plan.line_bytes = m.k_outer ? 8 * n : k / 2;
  plan.scale_bytes = m.k_outer ? n : k / kGroup;
  plan.k_outer = m.k_outer;
  return plan;
}

MatrixPlan plan_tensor_figures(const LintInput& s, size_t tensor, NumberKind kind, uint64_t unit) {
  constexpr uint64_t kShortest = 64, kLongest = 4u << 20, kChunk = 1u << 16;
  const TensorInfo& t = s.tensors[tensor];
  MatrixPlan plan;
  plan.kind = kind;
  plan.is_scale = t.name.ends_with("scale") || t.name.ends_with("scales") || t.name.ends_with("scale_inv");
  const bool has_rows = unit == 0;
  const size_t rank = t.shape.size();
  // ModelOpt's block scales of one matrix.
  const bool of_blocks = rank == 4 && t.shape[1] == 1 && t.shape[3] == 1;
  const bool stack = rank >= 3 && !of_blocks && t.shape[0] > 0 && t.name.find("experts") != t.name.npos;
  if (stack && t.bytes() % static_cast<uint64_t>(t.shape[0]) == 0)
    plan.matrices = static_cast<uint64_t>(t.shape[0]);
  uint64_t bytes = t.bytes() / plan.matrices;
  // Count the rows of a matrix or a stack. In MXFP4, the blocks of a row are a separate dimension after the
  // rows.
  uint64_t rows = 1;
  for (size_t i = stack ? 1 : 0; i + 1 < rank && !(stack && i > 1); ++i)
    rows *= static_cast<uint64_t>(t.shape[i]);
  const uint64_t row = rows > 0 ? bytes / rows : 0;
  plan.is_rows = has_rows && rank >= 2 && row >= kShortest && row <= kLongest;
  if (plan.is_rows) {
    plan.line_bytes = row;
  } else {
    if (kind == NumberKind::kE2m3) plan.kind = NumberKind::kUnknown;  // a chunk ends within a code
    plan.line_bytes = has_rows ? kChunk : std::max<uint64_t>(1, kChunk / unit) * unit;
    if (!has_rows && bytes % unit != 0) {  // a unit would cross the border between matrices
      plan.matrices = 1;
      bytes = t.bytes();
    }
  }
  plan.lines = (bytes + plan.line_bytes - 1) / plan.line_bytes;
  if (plan.is_scale && rank >= 2)
    plan.scale_columns = static_cast<uint64_t>(t.shape[of_blocks ? 2 : rank - 1]);
  return plan;
}

}  // namespace twofour
