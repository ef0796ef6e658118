#include "lib/lint/config/coded_modules.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/module_names.h"
#include "formats/naming.h"
#include "formats/weight_dialect.h"

namespace twofour {
namespace {

/// Upper limit of a matrix's side. No matrix is larger, and products of a few such sizes do not overflow.
constexpr int64_t kLargestSide = int64_t{1} << 40;

bool is_power(DType type) { return type == DType::kF8E8M0 || type == DType::kU8; }
/// Suffixes of 8-bit integers and of their scale, which is for the tensor or for each row. Sources:
/// compressed-tensors, compressors/naive_quantized.py; ModelOpt's W8A8_SQ_PER_CHANNEL.
constexpr std::string_view kPlainWeight = ".weight", kPlainScale = ".weight_scale";

class CodedModules {
 public:
  explicit CodedModules(const LintInput& s) : s_(s) {}

  std::vector<CodedModule> find() {
    std::vector<bool> known(s_.tensors.size());
    all_.reserve(s_.modules.size());
    for (const Nvfp4Linear& m : s_.modules) {
      add_nvfp4(m);
      known[m.codes] = true;
    }
    for (size_t i = 0; i < s_.tensors.size(); ++i) {
      const TensorInfo& t = s_.tensors[i];
      const bool coded = t.dtype == DType::kU8 || t.dtype == DType::kI8 || t.dtype == DType::kI32 ||
                         t.dtype == DType::kF8E4M3 || t.dtype == DType::kF8E5M2;
      if (coded && !known[i] && !s_.foreign.contains(module_of(t.name))) add(i, t);
    }
    std::sort(all_.begin(), all_.end(), [](auto& a, auto& b) { return a.tensor < b.tensor; });
    return std::move(all_);
  }

 private:
  void add_nvfp4(const Nvfp4Linear& m) {
    CodedModule c{m.name, m.codes, WeightFormat::kNvfp4, m.dialect->codes, m.dialect->global_scale};
    c.scale = m.block_scale;
    c.input_scale = m.input_scale;
    c.divides = m.dialect->divides;
    c.is_stack = m.dialect->stacked;
    c.n = m.n;
    c.k = m.k;
    c.scales_n = m.n;
    c.scales_k = m.k / 16;
    all_.push_back(std::move(c));
  }

  void add(size_t i, const TensorInfo& t) {
    const bool is_fp8 = t.dtype == DType::kF8E4M3 || t.dtype == DType::kF8E5M2;
    const DType like = is_fp8 ? DType::kF8E4M3 : t.dtype;
    for (const WeightDialect& d : weight_dialects()) {
      if (d.scale == nullptr || !d.weight_types.has(like) || !t.name.ends_with(d.weight)) continue;
      const bool stack = d.bare || *d.weight == '_';
      if (t.shape.size() != (stack ? (*d.weight == '_' ? 4u : 3u) : 2u)) continue;
      const std::string name = t.name.substr(0, t.name.size() - std::string_view(d.weight).size());
      const auto scale = find_scale(name, d.scale);
      if (!scale || !d.scale_types.has(s_.tensors[*scale].dtype)) continue;
      if (!fits_scales(d, t.shape, s_.tensors[*scale].shape)) continue;
      if (d.global_scale != nullptr && !s_.find(name + d.global_scale)) continue;
      CodedModule c{name, i, d.format, d.weight, d.scale};
      c.scale = scale;
      c.is_stack = stack;
      if (d.input_scale != nullptr) c.input_scale = s_.find(name + d.input_scale);
      c.has_zero_points = d.zero_points != nullptr && s_.find(name + d.zero_points).has_value();
      c.has_order = d.group_index != nullptr && s_.find(name + d.group_index).has_value();
      add_shape(c, t, s_.tensors[*scale]);
      all_.push_back(std::move(c));
      return;
    }
    if (t.shape.size() != 2 || !t.name.ends_with(kPlainWeight)) return;
    const std::string name = t.name.substr(0, t.name.size() - kPlainWeight.size());
    if (t.dtype == DType::kI8) add_int8(name, i, t);
    if (is_fp8) all_.push_back({name, i, WeightFormat::kFp8, kPlainWeight, ""});
  }
  /// Finds the scale beside codes. The pieces of an embedding may share a scale.
  std::optional<size_t> find_scale(const std::string& name, const char* suffix) const {
    if (const auto own = s_.find(name + suffix)) return own;
    const std::string_view table = table_of_piece(name);
    return table.empty() ? std::nullopt : s_.find(std::string(table) + suffix);
  }
  void add_int8(const std::string& name, size_t i, const TensorInfo& t) {
    const auto scale = s_.find(name + std::string(kPlainScale));
    if (!scale || !is_float(s_.tensors[*scale].dtype)) return;
    CodedModule c{name, i, WeightFormat::kInt4, kPlainWeight, kPlainScale};
    c.scale = scale;
    c.input_scale = s_.find(name + ".input_scale");
    c.has_zero_points = s_.find(name + ".weight_zero_point").has_value();
    c.bits = 8;
    c.n = t.shape[0];
    c.k = t.shape[1];
    add_scale_shape(c, s_.tensors[*scale]);
    all_.push_back(std::move(c));
  }

  void add_shape(CodedModule& c, const TensorInfo& t, const TensorInfo& scale) const {
    const std::vector<int64_t>& d = t.shape;
    if (c.format->integers) return add_packed(c, t, scale);
    if (d.size() == 4) {  // gpt-oss stores [E, N, groups, bytes]
      c.n = d[1];
      c.k = d[2] * d[3] * 2;
    } else {
      c.n = d[d.size() - 2];
      const int64_t width = d[d.size() - 1];
      c.k = c.format->sixes ? width / 3 * 4 : width * (c.format->pairs ? 2 : 1);
    }
    add_scale_shape(c, scale);
    const bool groups = c.scales_n == c.n && c.k % kMxGroup == 0 && c.scales_k == c.k / kMxGroup;
    if (c.is_fp8() && is_power(scale.dtype) && groups) c.format = WeightFormat(weight_formats::kMxfp8);
  }

  /// Reads the shape of scales: [], [1], [N], [N, 1], [N/b, K/b] or [N/b, 1, K/b, 1]. In stacks, E is the
  /// first dimension.
  static void add_scale_shape(CodedModule& c, const TensorInfo& scale) {
    std::vector<int64_t> d = scale.shape;
    if (c.is_stack && !d.empty()) d.erase(d.begin());
    if (d.size() == 4 && d[1] == 1 && d[3] == 1) d = {d[0], d[2]};
    if (d.size() > 2) return;
    c.scales_n = d.empty() ? 1 : d[0];
    c.scales_k = d.size() < 2 ? 1 : d[1];
  }

  void add_packed(CodedModule& c, const TensorInfo& t, const TensorInfo& scale) const {
    if (scale.shape.size() != 2) return;
    const bool is_packed_row = c.suffix == ".weight_packed";
    c.along_n = !is_packed_row && scale.shape[1] != t.shape[1];
    c.words = t.shape[is_packed_row || c.along_n ? 1 : 0];
    if (c.words > kLargestSide) return;
    c.scales_n = scale.shape[is_packed_row ? 0 : 1];
    c.scales_k = scale.shape[is_packed_row ? 1 : 0];
    c.n = c.scales_n;
    if (c.along_n) c.k = t.shape[0];
    const auto words_of = [&](int64_t size) {
      return size > 0 && c.words * 32 % size == 0 ? c.words * 32 / size : 0;
    };
    if (c.along_n) c.bits = static_cast<int>(words_of(c.n));
    // GPTQ packs zero points along N.
    if (!is_packed_row && !c.along_n) {
      const auto zeros = s_.find(c.name + ".qzeros");
      if (zeros && s_.tensors[*zeros].shape.size() == 2 && c.n > 0 &&
          s_.tensors[*zeros].shape[1] * 32 % c.n == 0)
        c.bits = static_cast<int>(s_.tensors[*zeros].shape[1] * 32 / c.n);
      if (c.bits > 0 && c.words <= (int64_t{1} << 40)) c.k = c.words * 32 / c.bits;
    }
  }

  const LintInput& s_;
  std::vector<CodedModule> all_;
};

}  // namespace

std::string CodedModule::text() const {
  if (format->integers) return bits > 0 ? fmt::format("INT{}", bits) : "integers";
  if (!is_fp8()) return format->name;
  if (scale_suffix.empty()) return "FP8 without a scale";
  if (scales_n == 1 && scales_k == 1) return "FP8 with a scale a tensor";
  if (scales_n == n && scales_k == 1) return "FP8 with a scale a row";
  return fmt::format("FP8 with {} x {} scales", scales_n, scales_k);
}

std::vector<CodedModule> find_coded_modules(const LintInput& input) { return CodedModules(input).find(); }

}  // namespace twofour
