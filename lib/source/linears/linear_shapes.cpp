#include "lib/source/linears/linear_shapes.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "formats/json/access.h"
#include "formats/module_parts.h"
#include "lib/base/names/weight_names.h"
#include "lib/source/config/config_terms.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/linears/tensor_values.h"

namespace twofour {
namespace {

using Dims = std::vector<int64_t>;
using Block = std::pair<int64_t, int64_t>;

constexpr Block kMxBlock{1, kMxGroup};
/// The block sizes of known FP8 checkpoints: DeepSeek-V3, DeepSeek-V4.1, rows of tiles, MXFP8.
constexpr Block kKnownBlocks[] = {{kFp8Block, kFp8Block}, {32, 32}, {1, kFp8Block}, kMxBlock};

/// The number of pieces of size `piece` in `all`. The last piece may be smaller.
int64_t count_of(int64_t all, int64_t piece) { return all / piece + (all % piece != 0); }

std::string blocks_text(std::span<const Block> blocks) {
  std::string text;
  for (const Block& b : blocks) {
    const char* before = text.empty() ? "" : b == blocks.back() ? " or " : ", ";
    text += fmt::format("{}[{}, {}]", before, b.first, b.second);
  }
  return text;
}

/// True if two block sizes divide the matrix into the same blocks.
bool cuts_alike(Block a, Block b, const Linear& m) {
  return std::min(a.first, m.n) == std::min(b.first, m.n) &&
         std::min(a.second, m.k) == std::min(b.second, m.k);
}

}  // namespace

LinearShapes::LinearShapes(const Checkpoint& checkpoint, Problems& problems)
    : c_(checkpoint),
      problems_(problems),
      stated_(stated_storage(quantization_of_values(checkpoint))),
      configured_(quantization_of_values(checkpoint)) {}

bool LinearShapes::refuse(size_t i, const std::string& expected) {
  problems_.add("{}: expected {}, found {}{}", c_.where(i), expected, describe(tensor(i)),
                text_of_fused_scales(tensor(i)));
  return false;
}

bool LinearShapes::expect_shape(size_t i, DType dtype, const Dims& shape) {
  return (tensor(i).dtype == dtype && tensor(i).shape == shape) || refuse(i, describe(dtype, shape));
}

bool LinearShapes::is_of(const std::string& module, const WeightDialect& d, size_t codes,
                         size_t scale) const {
  const WeightFormat format = d.format;
  if (format == WeightFormat::kMxfp4 || format == WeightFormat::kMxfp6) {
    const auto bits = integer_of(configured_->group_weights(module), "num_bits");
    if (bits == 4 || bits == 6) return bits == format->bits;
  }
  return fits_scales(d, tensor(codes).shape, tensor(scale).shape);
}

bool LinearShapes::read_grouped(Linear& m) {
  const Dims& codes = tensor(m.weight).shape;
  const int64_t group = m.format->group, bytes = m.format->code_bytes(group);
  Dims scales(codes.begin(), codes.end() - 1);
  if (codes.size() == 4) {
    if (codes[3] != bytes) return refuse(m.weight, fmt::format("[E, N, K/{}, {}]", group, bytes));
    m.e = codes[0];
    m.n = codes[1];
    m.k = codes[2] * group;
  } else {
    const int64_t width = codes.back();
    if (width % bytes != 0)
      return refuse(m.weight,
                    fmt::format("K a multiple of {}, {}", group,
                                m.format->sixes ? "four codes in three bytes" : "two codes a byte"));
    m.e = codes.size() == 3 ? codes[0] : 1;
    m.n = codes[codes.size() - 2];
    m.k = width / bytes * group;
    scales.push_back(m.k / group);
  }
  m.scale_rows = 1;
  m.scale_cols = group;
  return expect_shape(*m.scale, tensor(*m.scale).dtype, scales) &&
         (!m.format->global_scale || check_global_scale(m));
}

bool LinearShapes::check_global_scale(const Linear& m) {
  const auto size = configured_.configured().group_size_of(m.name);
  if (size && *size != m.scale_cols)
    return refuse(*m.scale, fmt::format("block scales for {} weights (the config)", *size));
  // Inputs of W4A8_NVFP4_FP8 are FP8. Those of NVFP4 would need another reading of the scale.
  const std::string algorithm = configured_.configured().find(m.name).algorithm;
  if (m.input_scale && !algorithm.empty() && algorithm != "W4A8_NVFP4_FP8")
    return refuse(*m.input_scale,
                  fmt::format("none beside scales for {} weights in {}", m.scale_cols, algorithm));
  const TensorInfo& global = tensor(*m.global_scale);
  const bool is_one = global.shape.empty() || global.shape == Dims{1};
  return (global.dtype == DType::kF32 && is_one) || refuse(*m.global_scale, "F32 [] or [1]");
}

/// Refuses a stated FP8 format other than E4M3. Codes of other FP8 formats, and integers, look like E4M3 in
/// the tensors.
bool LinearShapes::check_fp8_words(const Linear& m) {
  const std::string& format = stated_.fp8_format;
  const bool is_other = format.find("e4m3") == format.npos || format.find("fnuz") != format.npos;
  if (!format.empty() && is_other)
    return refuse(m.weight, fmt::format("FP8 (fmt {} of the config)", json_quote_short(format)));
  const Json& weights = configured_->group_weights(m.name);
  const Json& bits = member(weights, "num_bits");
  if (!weights.is_object() || (!bits.is_null() && bits != 8) || text_of(weights, "type") == "float")
    return true;
  return refuse(m.weight, "integers of 8 bits (the config's group), with type int or none");
}

bool LinearShapes::read_fp8_scale(Linear& m) {
  if (!check_fp8_words(m)) return false;
  const TensorInfo& scale = tensor(*m.scale);
  const auto dims_of = [&](int64_t rows, int64_t cols) {
    Dims dims = m.k_outer ? Dims{cols, rows} : Dims{rows, cols};
    if (m.stacked) dims.insert(dims.begin(), m.e);
    return dims;
  };
  const auto shared_by = [&](int64_t rows, int64_t cols) {
    m.scale_rows = rows;
    m.scale_cols = cols;
    return true;
  };
  Dims shape = scale.shape;  // ModelOpt has [N/b, 1, K/b, 1]
  if (!m.stacked && shape.size() == 4 && shape[1] == 1 && shape[3] == 1) shape = {shape[0], shape[2]};
  const Dims one{1}, each{m.e};
  if (shape.empty() || shape == one || (!m.stacked && shape == Dims{1, 1})) return shared_by(m.n, m.k);
  if (m.stacked && (shape == each || shape == dims_of(1, 1))) return shared_by(m.n, m.k);
  if (shape == dims_of(m.n, 1) || (!m.stacked && shape == Dims{m.n})) return shared_by(1, m.k);
  const auto fits = [&](Block b) {
    return shape == dims_of(count_of(m.n, b.first), count_of(m.k, b.second));
  };
  std::optional<Block> found;
  const auto own = configured_->block_of(m.name);
  const std::vector<Block> stated = own ? std::vector{*own} : stated_.blocks;
  for (const Block& b : stated) {
    if (!fits(b) || (found && cuts_alike(*found, b, m))) continue;
    if (found) return refuse(*m.scale, fmt::format("blocks of one size, not {}", blocks_text(stated)));
    found = b;
  }
  const bool powers = dtype_bits(scale.dtype) == 8;
  if (!found && powers && fits(kMxBlock)) found = kMxBlock;  // MXFP8, even if the config states other blocks
  const bool states = !stated.empty() || !stated_.unread_blocks.empty();
  if (!found && !states) {
    const auto known = std::find_if(std::begin(kKnownBlocks), std::end(kKnownBlocks), fits);
    if (known != std::end(kKnownBlocks)) found = *known;
  }
  if (found) return shared_by(found->first, found->second);
  const std::string sizes = !stated.empty() ? blocks_text(stated) + ", which the config states"
                            : states ? fmt::format("{}, which the config states", stated_.unread_blocks[0])
                                     : blocks_text(kKnownBlocks);
  return refuse(*m.scale, fmt::format("one scale, {} or those of blocks of {}", dims_of(m.n, 1), sizes));
}

bool LinearShapes::read_int4(Linear& m) {
  if (tensor(m.weight).shape.size() != 2) return refuse(m.weight, "a matrix of I32 words");
  m.scale_rows = 1;
  const bool packed = tensor(m.weight).name.ends_with("_packed");
  if (!(packed ? read_packed(m) : read_gptq_or_awq(m))) return false;
  if (m.zero_points) read_zero_points(m);
  m.is_ordered = m.group_index && m.packing != Int4Packing::kAwq && !stated_.method.empty() &&
                 !configured_->allows_order(m.name);
  return !m.group_index || expect_shape(*m.group_index, DType::kI32, {m.k});
}

void LinearShapes::read_zero_points(Linear& m) {
  switch (c_.zero_points()) {
    case ZeroPoints::kAsStated:
      m.wraps = stated_.by_gptqmodel && m.zero_offset == 1;
      m.lacks_config = m.packing == Int4Packing::kGptq && stated_.method.empty() && stated_.bits.empty();
      m.symmetry = configured_->symmetry_of(m.name);
      for (const auto& [file, beside] : configured_beside_) {
        const std::string_view configured = beside->symmetry_of(m.name);
        if (m.symmetry.empty() && !configured.empty()) m.symmetry = fmt::format("{} in {}", configured, file);
      }
      break;
    case ZeroPoints::kStored:
      break;
    case ZeroPoints::kSymmetric:
      m.ignores_zero_points = true;
      break;
    case ZeroPoints::kV2:
      m.zero_offset = 0;
  }
}

const Json& LinearShapes::exception_of(const Linear& m, std::string_view key) const {
  const Json* own = &configured_->exception_of(m.name, key);
  for (const auto& [file, beside] : configured_beside_) {
    if (own->is_null()) own = &beside->exception_of(m.name, key);
  }
  return *own;
}

bool LinearShapes::check_bits(const Linear& m, int64_t bits) {
  if (bits == 4) return true;
  problems_.add("{}: expected integers of 4 bits, found {} bits", c_.where(m.weight), bits);
  return false;
}

bool LinearShapes::read_stated_shape(Linear& m) {
  const TensorInfo& t = tensor(*m.shape);
  if (t.dtype != DType::kI64 && t.dtype != DType::kI32) return refuse(*m.shape, "I64 [2] or I32 [2]");
  if (t.shape != Dims{2}) return refuse(*m.shape, "[2], N and K");
  const std::vector<int64_t> wide =
      read_few_integers(t, [&](uint64_t at, std::span<uint8_t> out) { c_.read(*m.shape, at, out); });
  const int64_t words = tensor(m.weight).shape[1];
  if (wide[0] == m.n && wide[1] > 0 && wide[1] <= words * 32) {
    m.k = wide[1];
    return true;
  }
  problems_.add("{}: expected N and K of {}, [{}, at most {}], found [{}, {}]", c_.where(*m.shape),
                tensor(m.weight).name, m.n, words * kInt4Pack, wide[0], wide[1]);
  return false;
}

bool LinearShapes::check_group(const Linear& m) {
  const Json& weights = configured_->group_weights(m.name);
  if (!weights.is_object()) return true;
  if (const std::string type = text_of(weights, "type"); !type.empty() && type != "int")
    return refuse(m.weight, fmt::format("codes of {0}s (type: {0} in the config)", type));
  const bool asks_zeros = weights.value("symmetric", Json()) == false;
  if (asks_zeros && !m.zero_points && c_.zero_points() != ZeroPoints::kSymmetric)
    return refuse(m.weight, "weight_zero_point beside it (symmetric: false in the config)");
  const Json order = weights.value("actorder", Json());
  if ((order == "group" || order == "dynamic" || order == true) && !m.group_index)
    return refuse(m.weight, fmt::format("weight_g_idx beside it (actorder: {} in the config)",
                                        order.is_string() ? order.get<std::string>() : "true"));
  return true;
}

bool LinearShapes::read_packed(Linear& m) {
  if (!check_group(m)) return false;
  const Dims& words = tensor(m.weight).shape;
  m.packing = Int4Packing::kAlongK;
  m.n = words[0];
  m.k = words[1] * kInt4Pack;
  if (!stated_.bits.empty() && !stated_.bits.count(4)) return check_bits(m, *stated_.bits.begin());
  if (const auto bits = integer_of(configured_->group_weights(m.name), "num_bits");
      bits && !check_bits(m, *bits))
    return false;
  if (m.shape && !read_stated_shape(m)) return false;
  if (count_of(m.k, kInt4Pack) != words[1]) {
    for (const int64_t bits : {8, 1, 2, 3, 5, 6, 7}) {
      if (count_of(m.k * bits, 32) == words[1]) return check_bits(m, bits);
    }
    return refuse(m.weight, describe(DType::kI32, Dims{m.n, count_of(m.k, kInt4Pack)}));
  }
  const Dims& scale = tensor(*m.scale).shape;
  if (scale.size() != 2 || scale[0] != m.n || scale[1] == 0)
    return refuse(*m.scale, fmt::format("[{}, K/group]", m.n));
  if (m.zero_points && !expect_shape(*m.zero_points, DType::kI32, {count_of(m.n, kInt4Pack), scale[1]}))
    return false;
  return read_group_size(m, scale[1]);
}

/// Reads the files beside config.json that AutoGPTQ and AutoAWQ write, which may describe GPTQ and AWQ, too.
void LinearShapes::read_side() {
  if (has_read_side_) return;
  has_read_side_ = true;
  for (SideConfig& side : read_side_configs(c_.path())) {
    StatedStorage beside = stated_storage(side.value);
    const bool is_its = stated_.method.empty() || stated_.method == beside.method;
    for (const ConfigTerm& term : find_odd_types(side.file, "", side.value))
      if (is_its) problems_.add(text_of(c_, term));
    if (stated_.method.empty()) stated_.method = beside.method;
    if (stated_.method != beside.method) continue;  // from another run
    stated_.has_order = stated_.has_order || beside.has_order;
    stated_.by_gptqmodel = stated_.by_gptqmodel || beside.by_gptqmodel;
    if (stated_.format.empty()) stated_.format = beside.format;
    if (stated_.other_format.empty()) stated_.other_format = beside.other_format;
    if (stated_.bits.empty()) stated_.bits = std::move(beside.bits);
    if (stated_.group_sizes.empty()) stated_.group_sizes = std::move(beside.group_sizes);
    if (stated_.method == "gptq" && !beside.format.empty() && stated_.format != beside.format) {
      side_ =
          fmt::format("{}: checkpoint_format: expected {} (config.json), found {}; zero points depend on it",
                      (c_.path() / side.file).string(), stated_.format, beside.format);
    }
    configured_beside_.emplace_back(side.file, SourceGroups(std::move(side.value)));
  }
}

bool LinearShapes::check_method(Linear& m) {
  const bool awq = m.packing == Int4Packing::kAwq;
  const auto refuse_format = [&](const char* key, const char* expected) {
    problems_.add("{}: {}: expected {}, found {}", c_.where(m.weight), key, expected,
                  stated_.format.empty() ? "none" : stated_.format);
    return false;
  };
  if (!side_.empty()) {
    problems_.add(side_);
    return false;
  }
  if (!stated_.other_format.empty()) {
    problems_.add("{}: expected one format in the config, because zero points depend on it, found {} and {}",
                  c_.where(m.weight), stated_.format, stated_.other_format);
    return false;
  }
  const Json& own_order = exception_of(m, "desc_act");
  const bool has_order = own_order.is_null() ? stated_.has_order : own_order == true;
  if (has_order && !awq && !m.group_index)
    return refuse(m.weight, "g_idx beside it (desc_act: true in the config)");
  if (stated_.method == (awq ? "gptq" : "awq")) {
    return refuse(m.weight,
                  fmt::format("I32 {} (quant_method {})", awq ? "[K/8, N]" : "[K, N/8]", stated_.method));
  }
  const std::string& format = stated_.format;
  if (stated_.is_unlisted && !awq && format.empty() && c_.zero_points() == ZeroPoints::kAsStated) {
    problems_.add("{}: quant_method: expected gptq, awq or auto-round (zero points depend on it), found {}",
                  c_.where(m.weight), json_quote_short(stated_.method));
    return false;
  }
  if (stated_.method == "auto-round") {
    if (format != (awq ? "auto_round:auto_awq" : "auto_round:auto_gptq"))
      return refuse_format("packing_format", awq ? "auto_round:auto_awq" : "auto_round:auto_gptq");
  } else if (awq) {
    const bool gemm = format.empty() || format == "gemm" || format == "GEMM";
    if (!gemm) return refuse_format("version", "gemm");
  } else if (!format.empty() && format != "gptq" && format != "gptq_v2") {
    return refuse_format("checkpoint_format", "gptq or gptq_v2");
  }
  m.zero_offset = awq || format == "gptq_v2" ? 0 : 1;
  return true;
}

bool LinearShapes::read_gptq_or_awq(Linear& m) {
  read_side();
  const Dims &words = tensor(m.weight).shape, &scale = tensor(*m.scale).shape;
  const Json& own_bits = exception_of(m, "bits");
  if (own_bits.is_number_integer()) {
    if (!check_bits(m, own_bits.get<int64_t>())) return false;
  } else if (!stated_.bits.empty() && !stated_.bits.count(4)) {
    return check_bits(m, *stated_.bits.begin());
  }
  if (scale.size() != 2 || scale[0] == 0) return refuse(*m.scale, "[K/group, N]");
  const int64_t groups = scale[0];
  m.n = scale[1];
  const bool gptq = words[1] == m.n;
  if (!gptq && words[1] * kInt4Pack != m.n) {
    if (words[1] * 4 == m.n) return check_bits(m, 8);
    return refuse(m.weight,
                  fmt::format("I32 [K/8, {}] (GPTQ) or [K, {}] (AWQ)", m.n, count_of(m.n, kInt4Pack)));
  }
  m.packing = gptq ? Int4Packing::kGptq : Int4Packing::kAwq;
  m.k = words[0] * (gptq ? kInt4Pack : 1);
  if (!check_method(m)) return false;
  if (!m.zero_points) return refuse(m.weight, "qzeros beside it");
  const Dims& zeros = tensor(*m.zero_points).shape;
  if (zeros.size() == 2 && zeros[1] != count_of(m.n, kInt4Pack)) {
    for (const int64_t bits : {8, 2, 3}) {
      if (zeros[1] == count_of(m.n * bits, 32)) return check_bits(m, bits);
    }
  }
  if (m.group_index && gptq && tensor(*m.group_index).shape.size() == 1) {
    const int64_t k = tensor(*m.group_index).shape[0];
    if (count_of(k, kInt4Pack) == words[0]) m.k = k;  // K need not fill its last words
  }
  return expect_shape(*m.zero_points, DType::kI32, {groups, count_of(m.n, kInt4Pack)}) &&
         read_group_size(m, groups);
}

bool LinearShapes::read_group_size(Linear& m, int64_t groups) {
  const Json& exception = exception_of(m, "group_size");
  const Json& own =
      exception.is_null() ? member(configured_->group_weights(m.name), "group_size") : exception;
  const std::vector<int64_t> sizes =
      own.is_number_integer() ? std::vector{own.get<int64_t>()} : stated_.group_sizes;
  const auto is_stated = [&](int64_t size) {
    return std::find(sizes.begin(), sizes.end(), size) != sizes.end();
  };
  const auto fits = [&](int64_t size) { return is_stated_size(size) && count_of(m.k, size) == groups; };
  const int64_t equal = m.k % groups == 0 ? m.k / groups : 0;
  const auto stated = std::find_if(sizes.begin(), sizes.end(), fits);
  m.scale_cols = equal;
  if (stated != sizes.end() && !is_stated(equal)) m.scale_cols = *stated;
  for (const int64_t usual : {32, 64, 128}) {
    if (!sizes.empty() || m.group_index || equal == 0 || groups == 1 || usual == equal || !fits(usual))
      continue;
    return refuse(*m.scale, fmt::format("a config that states the group size, {} or another", usual));
  }
  if (m.scale_cols == 0 && m.group_index) m.scale_cols = count_of(m.k, groups);
  return m.scale_cols > 0 ||
         refuse(*m.scale, fmt::format("scales of groups that divide K = {} or that the config states", m.k));
}

}  // namespace twofour
