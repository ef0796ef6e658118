#include "formats/dialect.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "formats/atom.h"
#include "formats/error.h"

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
  throw Error(
      fmt::format("{}: {}: expected {}, found {}", where, t.name, expected, describe(t.dtype, t.shape)));
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
  std::vector<int64_t> of_32 = codes.shape;
  of_32.back() /= 16;
  if (codes.shape.back() % 16 == 0 && scale.shape == of_32) {
    throw Error(
        fmt::format("{}: {}: expected block scales of {} weights, found block size 32 (quant_algo "
                    "W4A8_NVFP4_FP8){}",
                    where(m.block_scale), scale.name, kGroup, kNotSupported));
  }
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
    if (!codes || !scale) {
      throw Error(fmt::format("{}: {}: expected {} beside it, found none", where(global_scale), global.name,
                              m.name + (codes ? dialect.block_scale : dialect.codes)));
    }
    m.codes = *codes;
    m.block_scale = *scale;
    m.input_scale = find_tensor(tensors, m.name + dialect.input_scale);
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

/// Tensors of formats of which only the names are known. Source: torchao 0.18,
/// prototype/mx_formats/nvfp4_tensor.py, and its flattening of tensor subclasses into safetensors.
struct UnreadFormat {
  std::string_view codes, beside;  ///< suffixes that follow the module's name
  const char* format;
};
constexpr UnreadFormat kUnread[] = {
    {"._weight_qdata", "._weight_per_tensor_scale", "torchao's NVFP4Tensor"},
    {"._weight_qdata", "", "a tensor class of torchao"},
};

}  // namespace

std::vector<UnreadCodes> find_unread_codes(std::span<const TensorInfo> tensors) {
  std::vector<UnreadCodes> found;
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (const UnreadFormat& row : kUnread) {
      if (!tensors[i].name.ends_with(row.codes)) continue;
      std::string module = tensors[i].name.substr(0, tensors[i].name.size() - row.codes.size());
      if (!row.beside.empty() && !find_tensor(tensors, module + std::string(row.beside))) continue;
      found.push_back({i, std::move(module), row.format});
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
