#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <mutex>
#include <optional>
#include <span>

#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "formats/error.h"
#include "formats/half.h"
#include "kernels/device/check.h"
#include "kernels/numbers/casts.h"
#include "kernels/numbers/dequantize.h"
#include "lib/base/threads/ordered_section.h"
#include "lib/write/methods/module_rewrite.h"
#include "lib/write/plan/tensor_rewrite.h"
#include "lib/write/transform/finite_weights.h"

namespace twofour {
namespace {

/// The outputs whose inputs are interleaved byte by byte. The sixteen inputs of a block are adjacent.
int64_t block_width(const Nvfp4Linear& m) { return m.k_outer ? m.n : 1; }

float scalar_to_float(DType dtype, const uint8_t* from) {
  if (dtype == DType::kF8E8M0 || dtype == DType::kU8) return e8m0_to_float(*from);
  if (dtype == DType::kF32) {
    float value = 0;
    std::memcpy(&value, from, sizeof(value));
    return value;
  }
  uint16_t bits = 0;
  std::memcpy(&bits, from, sizeof(bits));
  return dtype == DType::kBF16 ? bf16_to_float(bits) : fp16_to_float(bits);
}

std::span<const uint8_t> read(const Checkpoint& source, size_t tensor, uint64_t begin, uint64_t bytes,
                              std::vector<uint8_t>& buffer, RangeResult& result) {
  if (buffer.size() < bytes) buffer.resize(bytes);
  source.read(tensor, begin, {buffer.data(), bytes});
  result.read += bytes;
  return {buffer.data(), bytes};
}

/// Calls f(expert, blocks, place in the range) for bytes [first, first + count) of a module's codes, expert
/// by expert.
template <class F>
void for_each_expert(const Nvfp4Linear& m, uint64_t first, std::span<const uint8_t> codes,
                     std::span<const uint8_t> scales, F&& f) {
  const int64_t n = block_width(m);
  const uint64_t expert_bytes = static_cast<uint64_t>(m.n * m.k / 2), end = first + codes.size();
  for (uint64_t at = first; at < end;) {
    const uint64_t e = at / expert_bytes, stop = std::min(end, (e + 1) * expert_bytes);
    const CodeBlocks blocks{&codes[at - first], &scales[(at - first) / 8],
                            static_cast<int64_t>(stop - at) / (8 * n), n};
    f(e, blocks, at - first);
    at = stop;
  }
}

/// The first invalid byte in a range of a tensor of block scales. The range begins at byte `begin`.
std::optional<BadScale> find_bad_scale(uint64_t begin, std::span<const uint8_t> scales) {
  // Invalid bytes have the top bit set or are 0x7F. So the largest byte shows whether there is an invalid
  // byte.
  uint8_t largest = 0;
  for (const uint8_t byte : scales) largest = std::max(largest, byte);
  if (e4m3_is_block_scale(largest)) return std::nullopt;
  const auto at =
      std::find_if(scales.begin(), scales.end(), [](uint8_t b) { return !e4m3_is_block_scale(b); });
  return BadScale{begin + static_cast<uint64_t>(at - scales.begin()), *at};
}

/// The product of the largest code and the largest block scale, 6 * 448.
constexpr float kLargestNvfp4 = 2688.0f;

/// Throws Error if BF16 weights of a module are not finite. The range begins at element `first`.
void refuse_infinite(const Checkpoint& source, const Nvfp4Linear& m, uint64_t first,
                     std::span<const uint8_t> weights) {
  for (uint64_t i = 0; i < weights.size() / 2; ++i) {
    uint16_t bits = 0;
    std::memcpy(&bits, &weights[2 * i], sizeof(bits));
    if ((bits & 0x7F80) != 0x7F80) continue;
    const auto at = static_cast<int64_t>(first + i), within = at % (m.n * m.k);
    const int64_t row = m.k_outer ? within % m.n : within / m.k, k = m.k_outer ? within / m.n : within % m.k;
    throw Error(fmt::format("{}: expected finite weights that BF16 holds, found more{} row {}, k {}",
                            source.where(m.codes),
                            m.e > 1 ? fmt::format(" at expert {},", at / (m.n * m.k)) : " at", row, k));
  }
}

}  // namespace

void CopiedTensor::make(const Checkpoint& source, uint64_t begin, std::span<uint8_t> out,
                        RangeResult& result) const {
  source.read(tensor_, begin, out);
  result.read += out.size();
  if (is_block_scale_) result.bad_scale = find_bad_scale(begin, out);
}

uint64_t PrunedCodes::grain() const { return 8 * static_cast<uint64_t>(block_width(module_)); }

void PrunedCodes::make(const Checkpoint& source, uint64_t begin, std::span<uint8_t> out,
                       RangeResult& result) const {
  result.codes = read(source, module_.codes, begin, out.size(), result.buffers[0], result);
  // Another part copies the tensor of block scales. Here they only serve as weights of the figures.
  const auto scales = read(source, module_.block_scale, begin / 8, out.size() / 8, result.buffers[1], result);
  for_each_expert(
      module_, begin, result.codes, scales, [&](uint64_t e, const CodeBlocks& blocks, uint64_t at) {
        result.stats.push_back({static_cast<int64_t>(e), prune_codes(pattern_, blocks, &out[at])});
      });
}

uint64_t DequantizedWeights::grain() const { return 32 * static_cast<uint64_t>(block_width(module_)); }

void DequantizedWeights::make(const Checkpoint& source, uint64_t begin, std::span<uint8_t> out,
                              RangeResult& result) const {
  const uint64_t first = begin / 4, count = out.size() / 4;  // in bytes of codes
  result.codes = read(source, module_.codes, first, count, result.buffers[0], result);
  result.scales = read(source, module_.block_scale, first / 8, count / 8, result.buffers[1], result);
  result.bad_scale = find_bad_scale(first / 8, result.scales);
  for_each_expert(
      module_, first, result.codes, result.scales, [&](uint64_t e, const CodeBlocks& blocks, uint64_t at) {
        dequantize_bf16(blocks, multipliers_[e], &out[4 * at]);
        if (!(kLargestNvfp4 * multipliers_[e] < kBeyondBf16))
          refuse_infinite(source, module_, (begin + 4 * at) / 2,
                          out.subspan(4 * at, 32 * static_cast<size_t>(blocks.blocks * blocks.n)));
      });
}

void ConstantScalar::make(const Checkpoint&, uint64_t begin, std::span<uint8_t> out, RangeResult&) const {
  std::memcpy(out.data(), reinterpret_cast<const uint8_t*>(&value_) + begin, out.size());
}

namespace {

/// Calls f(expert, first row, rows) for the rows in a range of bytes of a linear's BF16 weights.
template <class F>
void for_each_expert_rows(const Linear& m, uint64_t begin, uint64_t end, F&& f) {
  const auto row_bytes = static_cast<uint64_t>(m.k) * 2;
  for (auto row = static_cast<int64_t>(begin / row_bytes), last = static_cast<int64_t>(end / row_bytes);
       row < last;) {
    const int64_t e = row / m.n, count = std::min(last - row, m.n - row % m.n);
    f(e, row % m.n, count);
    row += count;
  }
}

/// Transposes floats [n, k] to BF16 [k, n], in tiles that fit the L1 cache.
void turn_to_bf16(std::span<const float> weights, size_t n, size_t k, uint8_t* out) {
  constexpr size_t kTile = 32;
  for (size_t n0 = 0; n0 < n; n0 += kTile) {
    for (size_t k0 = 0; k0 < k; k0 += kTile) {
      for (size_t col = k0; col < std::min(k0 + kTile, k); ++col) {
        for (size_t row = n0; row < std::min(n0 + kTile, n); ++row) {
          const uint16_t bits = bf16_from_float(weights[row * k + col]);
          std::memcpy(out + 2 * (col * n + row), &bits, sizeof(bits));
        }
      }
    }
  }
}

}  // namespace

uint64_t WidenedWeights::grain() const {
  return static_cast<uint64_t>(module_.k * (module_.k_outer ? module_.n : 1)) * 2;
}

uint64_t WidenedWeights::read_bytes(uint64_t bytes) const {
  return module_.format->tiles ? bytes / 2 : bytes / 4 + bytes / 32;
}

void WidenedWeights::make(const Checkpoint& source, uint64_t begin, std::span<uint8_t> out,
                          RangeResult& result) const {
  WeightReader reader(source);
  result.buffers[0].resize(2 * out.size());
  const std::span floats(reinterpret_cast<float*>(result.buffers[0].data()), out.size() / 2);
  size_t at = 0;
  for_each_expert_rows(module_, begin, begin + out.size(), [&](int64_t e, int64_t row, int64_t rows) {
    const auto part = floats.subspan(at, static_cast<size_t>(rows * module_.k));
    reader.read_rows(module_, e, row, row + rows, part);
    refuse_beyond_bf16(source.where(module_.weight), part, row, module_.k);
    if (module_.k_outer) {
      turn_to_bf16(part, static_cast<size_t>(module_.n), static_cast<size_t>(module_.k), &out[2 * at]);
    } else {
      round_to_bf16(part, &out[2 * at]);
    }
    at += part.size();
  });
  result.codes = result.buffers[0];
  result.read += reader.bytes_read();
}

void GatheredRows::make(const Checkpoint& source, uint64_t begin, std::span<uint8_t> out,
                        RangeResult& result) const {
  const uint64_t first = begin / row_bytes_, rows = out.size() / row_bytes_;
  if (step_ == row_bytes_) {
    source.read(tensor_, first_ + begin, out);
    result.read += out.size();
    return;
  }
  const auto bytes = read(source, tensor_, first_ + first * step_, (rows - 1) * step_ + row_bytes_,
                          result.buffers[0], result);
  for (uint64_t r = 0; r < rows; ++r) {
    std::copy_n(&bytes[r * step_], row_bytes_, &out[r * row_bytes_]);
  }
}

namespace {

uint64_t width_of(DType dtype) { return static_cast<uint64_t>(dtype_bits(dtype)) / 8; }

}  // namespace

uint64_t ConvertedScalars::read_bytes(uint64_t bytes) const {
  return bytes / width_of(to_) * width_of(from_);
}

void ConvertedScalars::make(const Checkpoint& source, uint64_t begin, std::span<uint8_t> out,
                            RangeResult& result) const {
  const uint64_t to_bytes = width_of(to_), from_bytes = width_of(from_);
  const uint64_t first = begin / to_bytes, count = out.size() / to_bytes;
  const auto bytes = read(source, tensor_, first * from_bytes, count * from_bytes, result.buffers[0], result);
  for (uint64_t i = 0; i < count; ++i) {
    const float stored = scalar_to_float(from_, &bytes[i * from_bytes]);
    float value = stored;
    if (reciprocal_) value = remembered_bits_ != 0 ? std::bit_cast<float>(remembered_bits_) : 1.0f / value;
    const bool fits =
        std::fabs(value) < (to_ == DType::kBF16 ? kBeyondBf16 : std::numeric_limits<float>::infinity());
    if (!fits && std::isfinite(stored)) {
      throw Error(fmt::format("{}: expected a scale with a finite {}, found {}", source.where(tensor_),
                              reciprocal_ ? "reciprocal" : "value in BF16", stored));
    }
    if (to_ == DType::kF8E8M0) {
      out[i] = e8m0_from_float(value);
    } else if (to_ == DType::kBF16) {
      const uint16_t rounded = bf16_from_float(value);
      std::memcpy(&out[i * to_bytes], &rounded, sizeof(rounded));
    } else {
      std::memcpy(&out[i * to_bytes], &value, sizeof(value));
    }
  }
}

namespace {

/// Buffers of a thread for ranges.
struct RangeScratch : RangeResult {
  explicit RangeScratch(const Worker&) {}
  RangeResult& fresh() {
    codes = scales = {};
    read = 0;
    bad_scale.reset();
    stats.clear();
    return *this;
  }
};

/// Makes the range of a unit and writes it. Returns false if the source is refused.
bool make_range(const TensorRewrite& rewrite, const Unit& unit, Worker& worker, Sink& sink,
                RangeResult& result, size_t scale_tensor) {
  const auto out = worker.buffer(unit.end - unit.begin);
  rewrite.make(worker.source, unit.begin, out, result);
  sink.add_read(result.read);
  if (result.bad_scale) {
    sink.refuse_scale(scale_tensor, 0, *result.bad_scale, fmt::format(" {}", result.bad_scale->at));
  }
  if (sink.only_checks()) return false;
  sink.write(unit.part, unit.begin, out);
  return true;
}

/// The work on one tensor that belongs to no module.
class TensorWork : public Work {
 public:
  TensorWork(const CopiedTensor& copy, const TensorRewrite* cast, size_t tensor)
      : copy_(copy), cast_(cast), tensor_(tensor) {}
  void run(const Unit& unit, Worker& worker, Sink& sink) override {
    const TensorRewrite& rewrite = cast_ != nullptr ? *cast_ : copy_;
    make_range(rewrite, unit, worker, sink, worker.own<RangeScratch>().fresh(), tensor_);
  }

 private:
  const CopiedTensor copy_;
  const TensorRewrite* const cast_;  ///< replaces the copy
  size_t tensor_;
};

/// The work on the parts of a module. Its result has the figures of pruning for each expert, and the hashes
/// of converted sources.
class ModuleWork : public Work {
 public:
  ModuleWork(const Nvfp4Linear& module, const std::vector<PartedRewrite::Part>& parts,
             const std::vector<float>& multipliers, bool prunes)
      : module_(module),
        parts_(parts),
        multipliers_(multipliers),
        prunes_(prunes),
        stats_(multipliers.size()) {}

  void run(const Unit& unit, Worker& worker, Sink& sink) override {
    RangeResult& range = worker.own<RangeScratch>().fresh();
    const TensorRewrite& rewrite = *parts_[static_cast<size_t>(unit.part)].rewrite;
    const bool written = make_range(rewrite, unit, worker, sink, range, module_.block_scale);
    {
      const std::lock_guard lock(mutex_);
      for (const auto& [e, stats] : range.stats) stats_[static_cast<size_t>(e)] += stats;
    }
    if (!written || range.codes.empty()) return;
    has_scales_ = has_scales_ || !range.scales.empty();
    order_.pass(unit.begin, unit.end - unit.begin, [&] {
      codes_.update(range.codes);
      if (!range.scales.empty()) scales_.update(range.scales);
      has_codes_ = true;
    });
  }

  Json result(Sink&) override {
    Json json = Json::object();
    if (prunes_) {
      Quality quality;
      for (size_t e = 0; e < stats_.size(); ++e) quality.add(stats_[e], multipliers_[e]);
      json["quality"] = to_json(quality);
    }
    if (has_codes_) json["codes"] = codes_.digest().hex();
    if (has_scales_) json["scales"] = scales_.digest().hex();
    return json.empty() ? Json(nullptr) : json;
  }
  void stop() override { order_.stop(); }
  void release() override { order_.release(); }

 private:
  const Nvfp4Linear& module_;
  const std::vector<PartedRewrite::Part>& parts_;
  const std::vector<float>& multipliers_;
  const bool prunes_;
  std::mutex mutex_;
  std::vector<PruneStats> stats_;  ///< one for each expert
  OrderedSection order_;
  Hasher codes_, scales_;
  std::atomic<bool> has_codes_{false}, has_scales_{false};
};

/// The work on the parts of a linear. Its result has the hash of the weights if they are widened.
class LinearWork : public Work {
 public:
  explicit LinearWork(const LinearRewrite& rewrite) : rewrite_(rewrite) {}

  void run(const Unit& unit, Worker& worker, Sink& sink) override {
    RangeResult& range = worker.own<RangeScratch>().fresh();
    const TensorRewrite& part = *rewrite_.parts()[static_cast<size_t>(unit.part)].rewrite;
    const size_t scale = rewrite_.module().scale.value_or(0);
    if (!make_range(part, unit, worker, sink, range, scale) || range.codes.empty()) return;
    order_.pass(unit.begin, unit.end - unit.begin, [&] { weights_.update(range.codes); });
  }
  Json result(Sink&) override { return rewrite_.widens() ? Json(weights_.digest().hex()) : Json(nullptr); }
  void stop() override { order_.stop(); }
  void release() override { order_.release(); }

 private:
  const LinearRewrite& rewrite_;
  OrderedSection order_;
  Hasher weights_;
};

}  // namespace

std::unique_ptr<Work> LinearRewrite::begin() const { return std::make_unique<LinearWork>(*this); }

std::unique_ptr<Work> KeptTensor::begin() const {
  return std::make_unique<TensorWork>(CopiedTensor(tensor_, is_block_scale_), cast(), tensor_);
}

std::unique_ptr<Work> ModuleRewrite::begin() const {
  return std::make_unique<ModuleWork>(module_, parts(), scales_.multipliers, prunes_);
}

}  // namespace twofour
