#include "lib/run/runtime/tokens.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>
#include <random>
#include <set>

#include "formats/error.h"
#include "formats/half.h"
#include "formats/safetensors.h"
#include "kernels/numbers/casts.h"
#include "lib/base/io/file.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/config/model_config.h"

namespace twofour {

MoeInput Tokens::input() const {
  return {.m = m, .h = h, .topk = topk, .hidden = hidden, .topk_ids = ids, .topk_weights = weights};
}

int64_t Tokens::experts_used() const { return static_cast<int64_t>(std::set(ids.begin(), ids.end()).size()); }

int64_t experts_per_token(const Json& config, int64_t experts) {
  for (const Json* topk : model_settings(config, "num_experts_per_tok")) {
    if (topk->is_number_integer()) return std::clamp<int64_t>(topk->get<int64_t>(), 1, experts);
  }
  return std::min<int64_t>(2, experts);
}

Tokens draw_tokens(int64_t m, int64_t h, int64_t experts, int64_t topk, uint64_t seed) {
  std::mt19937_64 random(seed);  // the standard fixes the sequence of this generator, but not the results of
                                 // its distributions
  const auto uniform = [&] { return static_cast<double>(random() >> 11) * 0x1p-53; };
  Tokens t{{}, {}, {}, m, h, topk};
  for (int64_t i = 0; i < m * h; ++i) {
    double sum = 0;
    for (int j = 0; j < 12; ++j) sum += uniform();
    t.hidden.push_back(static_cast<float>(sum - 6));
  }
  std::vector<int32_t> deck(static_cast<size_t>(experts));
  std::iota(deck.begin(), deck.end(), 0);
  for (int64_t i = 0; i < m; ++i) {
    double total = 0;
    std::vector<double> weights;
    for (int64_t j = 0; j < topk; ++j) {
      const auto pick = static_cast<size_t>(j) + random() % static_cast<uint64_t>(experts - j);
      std::swap(deck[static_cast<size_t>(j)], deck[pick]);
      t.ids.push_back(deck[static_cast<size_t>(j)]);
      weights.push_back(0.1 + uniform());
      total += weights.back();
    }
    for (const double w : weights) t.weights.push_back(static_cast<float>(w / total));
  }
  return t;
}

namespace {

template <class T>
std::vector<T> read_values(const Checkpoint& file, size_t tensor) {
  std::vector<T> values(static_cast<size_t>(file.tensors()[tensor].bytes()) / sizeof(T));
  file.read(tensor, 0, {reinterpret_cast<uint8_t*>(values.data()), values.size() * sizeof(T)});
  return values;
}

[[noreturn]] void refuse(const Checkpoint& file, size_t tensor, const std::string& expected) {
  const TensorInfo& t = file.tensors()[tensor];
  throw Error(
      fmt::format("{}: expected {}, found {}", file.where(tensor), expected, describe(t.dtype, t.shape)));
}

}  // namespace

std::vector<uint8_t> to_float_bytes(std::span<const float> values, cuda::Float type) {
  std::vector<uint8_t> bytes(values.size() * static_cast<size_t>(cuda::size_of(type)));
  if (type == cuda::Float::f32) {
    std::copy_n(reinterpret_cast<const uint8_t*>(values.data()), bytes.size(), bytes.begin());
    return bytes;
  }
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t half = type == cuda::Float::bf16 ? bf16_from_float(values[i]) : fp16_from_float(values[i]);
    std::memcpy(&bytes[sizeof(half) * i], &half, sizeof(half));
  }
  return bytes;
}

std::vector<float> from_float_bytes(std::span<const uint8_t> bytes, cuda::Float type) {
  std::vector<float> values(bytes.size() / static_cast<size_t>(cuda::size_of(type)));
  widen(cuda::dtype_of(type), bytes.data(), values);
  return values;
}

ActivationFile read_activation_file(const std::filesystem::path& path, const LayerInfo& layer) {
  const Checkpoint file = Checkpoint::open(path);
  if (file.is_directory())
    throw Error(fmt::format("{}: expected a safetensors file, found a directory", path.string()));
  const auto hidden = file.find("hidden"), ids = file.find("topk_ids"), weights = file.find("topk_weights");
  if (!hidden) throw Error(fmt::format("{}: expected a tensor hidden, found none", path.string()));
  if (ids.has_value() != weights.has_value()) {
    throw Error(fmt::format("{}: expected topk_ids and topk_weights or neither, found {} alone",
                            path.string(), ids ? "topk_ids" : "topk_weights"));
  }
  for (size_t i = 0; i < file.tensors().size(); ++i) {
    if (i != hidden && i != ids && i != weights)
      refuse(file, i, "no tensors but hidden, topk_ids and topk_weights");
  }
  ActivationFile tokens;
  const TensorInfo& x = file.tensors()[*hidden];
  std::optional<cuda::Float> type;
  for (const auto known : {cuda::Float::f32, cuda::Float::bf16, cuda::Float::f16})
    if (cuda::dtype_of(known) == x.dtype) type = known;
  if (!type || x.shape.size() != 2 || x.shape[1] != layer.h)
    refuse(file, *hidden, fmt::format("F32, BF16 or F16 [M, {}]", layer.h));
  tokens.type = *type;
  tokens.m = x.shape[0];
  tokens.hidden = from_float_bytes(read_values<uint8_t>(file, *hidden), tokens.type);
  if (!ids) return tokens;

  const TensorInfo &i = file.tensors()[*ids], &w = file.tensors()[*weights];
  if (i.dtype != DType::kI32 || i.shape.size() != 2 || i.shape[0] != tokens.m || i.shape[1] < 1)
    refuse(file, *ids, fmt::format("I32 [{}, T]", tokens.m));
  if (w.dtype != DType::kF32 || w.shape != i.shape) refuse(file, *weights, describe(DType::kF32, i.shape));
  tokens.topk = i.shape[1];
  tokens.ids = read_values<int32_t>(file, *ids);
  tokens.weights = read_values<float>(file, *weights);
  return tokens;
}

bool is_output_file(const std::filesystem::path& path) {
  const InputFile file(path);
  std::string head(std::min<uint64_t>(file.size(), 512), '\0');
  file.read(0, {reinterpret_cast<uint8_t*>(head.data()), head.size()});
  return head.find(fmt::format("\"{}\":\"output\"", kOutputMark)) != head.npos;
}

void write_output_file(const std::filesystem::path& path, std::span<const float> output, int64_t h,
                       cuda::Float type) {
  TensorInfo tensor;
  tensor.name = "output";
  tensor.dtype = cuda::dtype_of(type);
  tensor.shape = {static_cast<int64_t>(output.size()) / h, h};
  std::vector<TensorInfo> tensors{tensor};
  assign_offsets(tensors);
  const std::string header = format_safetensors_header(tensors, {{"format", "pt"}, {kOutputMark, "output"}});
  const std::vector<uint8_t> bytes = to_float_bytes(output, type);
  AtomicFile file(path);
  file.resize(header.size() + bytes.size());
  file.write(header.size(), bytes);
  // The header is written last, so that a file of a killed run never looks complete.
  file.write(0, header);
  file.commit();
}

Findings find_not_finite(const std::filesystem::path& path, std::span<const float> output, int64_t h,
                         cuda::Float type) {
  const auto width = static_cast<size_t>(h);
  size_t count = 0, first = 0;
  float number = 0;
  for (size_t begin = 0; begin < output.size(); begin += width) {
    // Large numbers may become infinite in the type of the file.
    const std::vector<float> row = from_float_bytes(to_float_bytes(output.subspan(begin, width), type), type);
    for (size_t i = 0; i < width; ++i) {
      if (std::isfinite(row[i])) continue;
      if (count++ == 0) first = begin + i, number = row[i];
    }
  }
  if (count == 0) return {};
  return {{Severity::kWarning, "not-finite",
           fmt::format("{}: output[{}, {}]", path.string(), first / width, first % width),
           fmt::format("expected finite numbers, found {}, the first of {} among {} in {}", number, count,
                       output.size(), dtype_name(cuda::dtype_of(type)))}};
}

}  // namespace twofour
