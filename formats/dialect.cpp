#include "formats/dialect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "formats/atom.h"
#include "formats/error.h"
#include "formats/module_parts.h"
#include "formats/weight_dialect.h"

namespace twofour {
namespace {

// If several rows fit a tensor's name, the first row whose global-scale suffix ends the name counts.
constexpr Nvfp4Dialect kDialects[] = {
    {"quark", "quark", ".weight", ".weight_scale", ".weight_scale_2", ".input_scale_2", false, false, true},
    {"modelopt", "modelopt", ".weight", ".weight_scale", ".weight_scale_2", ".input_scale", false, false},
    {"modelopt", "modelopt", "", "_weight_scale", "_weight_scale_2", "_input_scale", false, true},
    {"compressed-tensors", "compressed-tensors", ".weight_packed", ".weight_scale", ".weight_global_scale",
     ".input_global_scale", true, false},
};

[[noreturn]] void fail_shape(const std::string& where, const TensorInfo& t, const std::string& expected) {
  throw Error(fmt::format("{}: {}: expected {}, found {}{}", where, t.name, expected,
                          describe(t.dtype, t.shape), text_of_fused_scales(t)));
}

bool is_scalar_or(const TensorInfo& t, int64_t e) {
  return t.shape.empty() || (t.shape.size() == 1 && (t.shape[0] == 1 || t.shape[0] == e)) ||
         (t.shape.size() == 2 && t.shape[0] == 1 && t.shape[1] == 1) ||
         // ModelOpt writes [E, 1, 1] after a reduction over a stack.
         (t.shape.size() == 3 && t.shape[0] == e && t.shape[1] == 1 && t.shape[2] == 1);
}

/// Sets e, n, k and k_outer from the shapes of codes and block scales, or throws.
void read_shapes(Nvfp4Linear& m, std::span<const TensorInfo> tensors,
                 const std::function<std::string(size_t)>& where) {
  const TensorInfo &codes = tensors[m.codes], &scale = tensors[m.block_scale];
  if (codes.dtype != DType::kU8) fail_shape(where(m.codes), codes, "U8 codes, two to a byte");
  if (scale.dtype != DType::kF8E4M3) fail_shape(where(m.block_scale), scale, "F8_E4M3 block scales");
  const size_t rank = m.dialect->stacked ? 3 : 2;
  if (rank == 2 && codes.shape.size() == 3)
    throw Error(
        fmt::format("{}: {}: expected the names of a linear, or ModelOpt's of a stack, found a stack of "
                    "experts, {}, under the names of a linear{}",
                    where(m.codes), codes.name, describe(codes), kNotSupported));
  if (codes.shape.size() != rank) fail_shape(where(m.codes), codes, fmt::format("{} dimensions", rank));
  if (scale.shape.size() != rank) fail_shape(where(m.block_scale), scale, fmt::format("{} dimensions", rank));
  if (std::count(codes.shape.begin(), codes.shape.end(), 0) > 0) {
    fail_shape(where(m.codes), codes, "at least one weight");
  }
  // Divide dimensions and never multiply them: a scale tensor without elements may claim any dimension.
  const auto scales_along = [&](size_t k) {
    std::optional<std::vector<int64_t>> shape;
    if (codes.shape[k] % 8 == 0) shape = codes.shape, (*shape)[k] /= 8;
    return shape;
  };
  const auto inner = scales_along(rank - 1), outer = rank == 3 ? scales_along(rank - 2) : std::nullopt;
  if (!inner && !outer) fail_shape(where(m.codes), codes, fmt::format("K a multiple of {}", kGroup));
  if (rank == 3 && inner && codes.shape[2] % 16 == 0 &&
      scale.shape == std::vector{codes.shape[0], codes.shape[1], codes.shape[2] / 16})
    throw Error(
        fmt::format("{}: {}: expected scales for 16 weights, found scales for 32, {}, in a stack of "
                    "experts{}",
                    where(m.block_scale), scale.name, describe(scale), kNotSupported));
  if (scale.shape != inner && scale.shape != outer) {
    fail_shape(where(m.block_scale), scale,
               fmt::format("{}{}{}", inner ? describe(DType::kF8E4M3, *inner) : "",
                           inner && outer ? " or " : "", outer ? describe(DType::kF8E4M3, *outer) : ""));
  }
  m.k_outer = scale.shape == outer;
  if (rank == 3) m.e = codes.shape[0];
  m.n = codes.shape[m.k_outer ? rank - 1 : rank - 2];
  m.k = codes.shape[m.k_outer ? rank - 2 : rank - 1] * 2;
}

/// True for a module with block scales for 32 weights, which weight_dialects() has.
bool is_of_32(const TensorInfo& codes, const TensorInfo& scale, const Nvfp4Dialect& dialect) {
  return codes.dtype == DType::kU8 && scale.dtype == DType::kF8E4M3 && codes.shape.size() == 2 &&
         codes.shape[0] > 0 && std::ranges::any_of(weight_dialects(), [&](const WeightDialect& d) {
           return d.format == WeightFormat::kNvfp4Bs32 && std::string_view(d.weight) == dialect.codes &&
                  std::string_view(d.global_scale) == dialect.global_scale &&
                  fits_scales(d, codes.shape, scale.shape);
         });
}

}  // namespace

std::span<const Nvfp4Dialect> nvfp4_dialects() { return kDialects; }

float global_scale_multiplier(const Nvfp4Dialect& dialect, float stored) {
  return dialect.divides ? 1.0f / stored : stored;
}

std::optional<size_t> find_tensor(std::span<const TensorInfo> tensors, std::string_view name) {
  const auto at = std::lower_bound(tensors.begin(), tensors.end(), name,
                                   [](const TensorInfo& t, std::string_view n) { return t.name < n; });
  if (at == tensors.end() || at->name != name) return std::nullopt;
  return static_cast<size_t>(at - tensors.begin());
}

namespace {

bool has_one_number(std::span<const TensorInfo> tensors, const std::string& name) {
  const auto at = find_tensor(tensors, name);
  return at && (tensors[*at].shape.empty() || tensors[*at].shape == std::vector<int64_t>{1});
}

}  // namespace

std::optional<Nvfp4Linear> read_nvfp4_module(std::span<const TensorInfo> tensors, size_t global_scale,
                                             const std::function<std::string(size_t)>& where) {
  const TensorInfo& global = tensors[global_scale];
  for (const Nvfp4Dialect& dialect : kDialects) {
    if (!global.name.ends_with(dialect.global_scale)) continue;
    Nvfp4Linear m;
    m.dialect = &dialect;
    m.name = global.name.substr(0, global.name.size() - std::string_view(dialect.global_scale).size());
    if (dialect.known_by_input && !has_one_number(tensors, m.name + dialect.input_scale)) continue;
    m.global_scale = global_scale;
    const auto codes = find_tensor(tensors, m.name + dialect.codes);
    const auto scale = find_tensor(tensors, m.name + dialect.block_scale);
    if (dialect.stacked && !codes && find_tensor(tensors, m.name + "_weight"))
      throw Error(
          fmt::format("{}: {}: expected the names of a checkpoint, found those of an engine's own stack of "
                      "experts{}",
                      where(global_scale), global.name, kNotSupported));
    if (!codes || !scale) {
      throw Error(fmt::format("{}: {}: expected {} beside it, found none", where(global_scale), global.name,
                              m.name + (codes ? dialect.block_scale : dialect.codes)));
    }
    m.codes = *codes;
    m.block_scale = *scale;
    m.input_scale = find_tensor(tensors, m.name + dialect.input_scale);
    if (is_of_32(tensors[*codes], tensors[*scale], dialect)) return std::nullopt;
    read_shapes(m, tensors, where);
    if (global.dtype != DType::kF32 || !is_scalar_or(global, m.e)) {
      fail_shape(where(global_scale), global,
                 m.e == 1 ? "F32 [] or [1]" : fmt::format("F32 [], [1] or [{}]", m.e));
    }
    return m;
  }
  return std::nullopt;
}

namespace {

constexpr DTypes kPlainFloats{DType::kBF16, DType::kF16, DType::kF32}, kByteTypes{DType::kU8, DType::kF8E8M0},
    kCodeTypes{DType::kU8, DType::kI8, DType::kU32, DType::kI32, DType::kF8E4M3, DType::kF4};

/// A packing that is known by names and types and not read. Sources: torchao 0.18,
/// prototype/mx_formats/nvfp4_tensor.py, and its flattening of tensor subclasses into safetensors; MLX,
/// mlx/nn/layers/quantized.py; bitsandbytes, nn/modules.py; AMD Quark, export; NVIDIA/Model-Optimizer,
/// modelopt/torch/export/quant_utils.py (pack_int4_in_uint8).
struct ForeignPacking {
  std::string_view codes;  ///< suffix that follows the module's name
  DTypes types;
  std::string_view beside;  ///< suffix of a tensor beside the codes; empty: none is needed
  DTypes beside_types;
  int64_t codes_a_scale;  ///< elements of codes along the last axis for each element beside them; 0: any
  const char* format;
  const char* words;  ///< a text in the quantization entry that names the format
};
// The first row that fits counts.
constexpr ForeignPacking kForeign[] = {
    {"._weight_qdata", kCodeTypes, "._weight_per_tensor_scale", kPlainFloats, 0, "torchao's NVFP4Tensor",
     "torchao"},
    {"._weight_qdata", kCodeTypes, "", {}, 0, "a tensor class of torchao", "torchao"},
    {".weight", DType::kU32, ".biases", kPlainFloats, 0, "MLX's affine codes", "bits"},
    {".weight", DType::kU32, ".scales", DType::kU8, 2, "MLX's NVFP4", "nvfp4"},
    {".weight", DType::kU32, ".scales", DType::kU8, 4, "MLX's MXFP4", "mxfp4"},
    {".weight", DType::kU32, ".scales", kPlainFloats, 0, "MLX's codes in U32", "bits"},
    {".weight", kCodeTypes, ".weight_quantizer.scale", kPlainFloats, 0,
     "Quark's codes beside weight_quantizer.scale", "quark"},
    {".weight", kCodeTypes, ".weight_quantizer.scale", kByteTypes, 0,
     "Quark's codes beside weight_quantizer.scale", "quark"},
    {".weight", DType::kI32, ".weight_scale", kPlainFloats, 0, "Quark's INT4", "quark"},
    {".weight", DType::kU8, ".weight_scale", kByteTypes, 24, "Quark's MXFP6", "quark"},
    {".weight", DType::kU8, ".weight_scale", kPlainFloats, 0, "ModelOpt's INT4, as of W4A16_AWQ", "AWQ"},
    {".weight", DType::kU8, ".weight.absmax", kPlainFloats, 0, "bitsandbytes' codes of four bits",
     "bitsandbytes"},
    {".weight", DType::kU8, ".weight.absmax", kByteTypes, 0, "bitsandbytes' codes of four bits",
     "bitsandbytes"},
    {".weight", DType::kI8, ".SCB", kPlainFloats, 0, "bitsandbytes' INT8", "bitsandbytes"},
};

/// The tensors around the one at `i` whose names begin with `prefix`, as its own does.
std::span<const TensorInfo> find_below(std::span<const TensorInfo> tensors, size_t i,
                                       std::string_view prefix) {
  size_t first = i, last = i + 1;
  while (first > 0 && tensors[first - 1].name.starts_with(prefix)) --first;
  while (last < tensors.size() && tensors[last].name.starts_with(prefix)) ++last;
  return tensors.subspan(first, last - first);
}

bool is_packed_as(const ForeignPacking& row, const TensorInfo& codes, std::string_view module,
                  std::span<const TensorInfo> tensors) {
  if (row.beside.empty()) return true;
  const auto at = find_tensor(tensors, std::string(module) + std::string(row.beside));
  if (!at || !row.beside_types.has(tensors[*at].dtype)) return false;
  if (row.codes_a_scale == 0) return true;
  const auto &own = codes.shape, &scales = tensors[*at].shape;
  return !own.empty() && own.size() == scales.size() && scales.back() > 0 &&
         own.back() % scales.back() == 0 && own.back() / scales.back() == row.codes_a_scale;
}

}  // namespace

std::vector<UnreadCodes> find_unread_codes(std::span<const TensorInfo> tensors) {
  std::vector<UnreadCodes> found;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& t = tensors[i];
    std::span<const TensorInfo> beside;  // tensors are sorted, so those of a module are neighbours
    for (const ForeignPacking& row : kForeign) {
      if (!row.types.has(t.dtype) || !t.name.ends_with(row.codes)) continue;
      std::string module = t.name.substr(0, t.name.size() - row.codes.size());
      if (beside.empty()) beside = find_below(tensors, i, module);
      if (!is_packed_as(row, t, module, beside)) continue;
      found.push_back({i, std::move(module), row.format, row.words});
      break;
    }
  }
  return found;
}

std::vector<Nvfp4Linear> find_nvfp4_modules(std::span<const TensorInfo> tensors,
                                            const std::function<std::string(size_t)>& where) {
  std::vector<Nvfp4Linear> modules;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (auto m = read_nvfp4_module(tensors, i, where)) modules.push_back(std::move(*m));
  }
  return modules;
}

}  // namespace twofour
