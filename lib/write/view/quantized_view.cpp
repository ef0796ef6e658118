#include "lib/write/view/quantized_view.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "formats/error.h"
#include "formats/json.h"
#include "lib/base/findings/and_more.h"
#include "lib/base/names/natural.h"
#include "lib/base/primitives/idle.h"
#include "lib/write/methods/module_rewrite.h"
#include "lib/write/view/solved_groups.h"

namespace twofour {
namespace {

/// A checkpoint with some linears in NVFP4.
class QuantizedView : public TensorSource {
 public:
  struct Tensor {
    TensorInfo info;
    uint32_t shard;
    size_t stored = 0;  ///< index in the source, if the tensor is stored there
    // A tensor that is not stored is made in one of these two ways:
    const TensorRewrite* rewrite = nullptr;
    const QuantizedGroup* group = nullptr;
    size_t number = 0, matrix = 0;  ///< index of the group, and of the matrix in the group
    EncodedPart part = EncodedPart::kValues;
  };

  QuantizedView(Checkpoint source, MakeRowQuantizer make)
      : source_(std::move(source)), make_(std::move(make)) {}
  /// Returns the source if the view computes nothing.
  Checkpoint give_back() && { return std::move(source_); }
  /// Takes the plan. Throws Error if two tensors have the same name.
  void show(std::shared_ptr<const ComputedPlan> planned);
  /// Divides threads among the groups that are quantized as a whole.
  void set_threads(const MemoryLimits& limits, int threads) {
    const uint64_t fit = limits.solving_buffers / std::max<uint64_t>(1, reader_bytes());
    const int solvers = static_cast<int>(std::clamp<uint64_t>(fit, 1, static_cast<uint64_t>(threads)));
    solved_.set_solvers(solvers, (threads + solvers - 1) / solvers);
  }

  const Checkpoint& stored() const override { return source_; }
  const std::vector<Tensor>& tensors() const { return tensors_; }
  void read(size_t tensor, uint64_t offset, std::span<uint8_t> out) const override;
  uint64_t reader_bytes() const override { return source_.reader_bytes() + worker_bytes_; }
  bool is_another() const override { return source_.is_view(); }
  std::optional<uint64_t> computed_from(size_t tensor) const override;
  void read_rows(size_t codes_tensor, const RowRange& rows, std::span<uint8_t> codes,
                 std::span<uint8_t> scales) const override;
  Json computed_result(size_t codes_tensor) const override;
  Findings computed_findings() const override;

 private:
  /// The scale of a group, after it was found.
  struct Shared {
    std::mutex mutex;
    std::optional<GroupScale> scale;
  };
  void add_group(const QuantizedGroup& group);
  void add_parts(const PartedRewrite& module);
  void add_rewritten(const TensorInfo& info, size_t source, const TensorRewrite& rewrite);
  void read_rewritten(const Tensor& tensor, uint64_t offset, std::span<uint8_t> out) const;
  GroupScale scale_of(const Tensor& tensor, RowQuantizer& quantizer) const;
  void read_bytes(const Tensor& tensor, uint64_t offset, std::span<uint8_t> out) const;
  void read_solved(const Tensor& tensor, uint64_t offset, std::span<uint8_t> out) const;
  void read_bias(const Tensor& tensor, uint64_t offset, std::span<uint8_t> out) const;
  /// Calls f(quantizer) with a quantizer that no other thread uses.
  template <class F>
  void with_quantizer(F&& f) const;

  Checkpoint source_;
  const MakeRowQuantizer make_;
  std::shared_ptr<const ComputedPlan> planned_;
  std::vector<Tensor> tensors_;
  uint64_t worker_bytes_ = 0;
  mutable std::deque<Shared> shared_;  ///< one for each group
  mutable SolvedGroups solved_{source_, make_};
  mutable std::mutex mutex_;
  mutable Idle<std::unique_ptr<RowQuantizer>> idle_;
  mutable Findings findings_;
};

void QuantizedView::show(std::shared_ptr<const ComputedPlan> made) {
  planned_ = std::move(made);
  const Transformations& planned = planned_->planned;
  std::vector<bool> is_gone(source_.tensors().size());
  for (const auto& one : planned) {
    for (const size_t i : one->sources()) is_gone[i] = true;
  }
  for (const auto* group : planned.of<QuantizedGroup>()) add_group(*group);
  for (const auto* module : planned.of<ModuleRewrite>()) add_parts(*module);
  for (const auto* linear : planned.of<LinearRewrite>()) add_parts(*linear);
  for (const auto* one : planned.of<KeptTensor>())
    add_rewritten(one->outputs(source_)[0], one->sources()[0], *one->cast());
  for (size_t i = 0; i < is_gone.size(); ++i) {
    if (is_gone[i]) continue;
    tensors_.push_back({source_.tensors()[i], source_.shard_index_of(i), i});
  }
  std::sort(tensors_.begin(), tensors_.end(),
            [](const Tensor& a, const Tensor& b) { return a.info.name < b.info.name; });
  const auto twice = std::adjacent_find(tensors_.begin(), tensors_.end(),
                                        [](auto& a, auto& b) { return a.info.name == b.info.name; });
  if (twice == tensors_.end()) return;
  throw Error(
      fmt::format("{}: expected this name to be free for quantized weights, found a tensor of that name",
                  json_quote(twice->info.name)));
}

void QuantizedView::add_group(const QuantizedGroup& group) {
  const std::vector<TensorInfo> outputs = group.outputs(source_);
  for (size_t m = 0; m < group.matrices().size(); ++m) {
    const EncodedMatrix& matrix = group.matrices()[m];
    for (size_t p = 0; p < kEncodedParts; ++p) {
      const int part = matrix.parts[p];
      if (part < 0) continue;
      Tensor t{outputs[static_cast<size_t>(part)], source_.shard_index_of(matrix.source->weight)};
      t.group = &group;
      t.number = shared_.size();
      t.matrix = m;
      t.part = static_cast<EncodedPart>(p);
      tensors_.push_back(std::move(t));
    }
  }
  shared_.emplace_back();
  uint64_t kept = 0;  // bytes of a solved group
  for (const TensorInfo& t : outputs) kept += is_solved(group) ? t.bytes() : 0;
  worker_bytes_ = std::max(worker_bytes_, group.worker_bytes() + kept);
}

void QuantizedView::add_parts(const PartedRewrite& module) {
  for (const PartedRewrite::Part& part : module.parts()) add_rewritten(part.info, part.source, *part.rewrite);
}

void QuantizedView::add_rewritten(const TensorInfo& info, size_t source, const TensorRewrite& rewrite) {
  Tensor t{info, source_.shard_index_of(source), source};
  t.rewrite = &rewrite;
  tensors_.push_back(std::move(t));
  worker_bytes_ = std::max(worker_bytes_, 3 * rewrite.step());
}

template <class F>
void QuantizedView::with_quantizer(F&& f) const {
  std::optional<std::unique_ptr<RowQuantizer>> mine = idle_.take();
  if (!mine) mine = make_(source_, 1);
  f(**mine);
  idle_.give_back(std::move(*mine));
}

GroupScale QuantizedView::scale_of(const Tensor& t, RowQuantizer& quantizer) const {
  Shared& shared = shared_[t.number];
  const std::lock_guard lock(shared.mutex);
  if (!shared.scale) {
    GroupScale scale = quantizer.survey(*t.group);
    const std::lock_guard lock_findings(mutex_);
    std::move(scale.findings.begin(), scale.findings.end(), std::back_inserter(findings_));
    scale.findings.clear();
    shared.scale = std::move(scale);
  }
  return *shared.scale;
}

Json QuantizedView::computed_result(size_t codes_tensor) const {
  const Tensor& t = tensors_[codes_tensor];
  if (t.group == nullptr || !is_solved(*t.group)) return nullptr;
  const Json results = solved_.results(t.number);
  return results.is_null() ? results : results.at(t.matrix);
}

Findings QuantizedView::computed_findings() const {
  std::map<std::string, std::pair<Finding, size_t>> kinds;  // the first finding for each name, and the number
                                                            // of such findings
  Findings found = solved_.findings();
  const std::lock_guard lock(mutex_);
  found.insert(found.end(), findings_.begin(), findings_.end());
  for (const Finding& f : found) {
    const auto [at, is_new] = kinds.try_emplace(f.id, f, 0);
    ++at->second.second;
    if (natural_less(f.where, at->second.first.where)) at->second.first = f;
  }
  Findings all;
  for (auto& [id, kind] : kinds) {
    auto& [first, count] = kind;
    first.message += and_more(count, " ({} more are like this)");
    all.push_back(std::move(first));
  }
  return all;
}

std::optional<uint64_t> QuantizedView::computed_from(size_t tensor) const {
  const Tensor& t = tensors_[tensor];
  if (t.group == nullptr) return std::nullopt;
  const EncodedMatrix& m = t.group->matrices()[t.matrix];
  const Linear& from = *m.source;
  uint64_t bytes = source_.tensors()[from.weight].bytes();
  if (from.scale) bytes += source_.tensors()[*from.scale].bytes();
  // Rows are read once for the global scale, and once more to quantize.
  return 2 * bytes / static_cast<uint64_t>(from.e * from.n) * static_cast<uint64_t>(m.rows);
}

void QuantizedView::read_rows(size_t codes_tensor, const RowRange& rows, std::span<uint8_t> codes,
                              std::span<uint8_t> scales) const {
  const Tensor& t = tensors_[codes_tensor];
  if (is_solved(*t.group)) {
    const EncodedMatrix& m = t.group->matrices()[t.matrix];
    const auto solved = solved_.of(t.number, *t.group);
    const auto take = [&](EncodedPart part, int64_t per_byte, std::span<uint8_t> to) {
      const auto& from = solved->parts[static_cast<size_t>(m.part(part))];
      const int64_t pitch = m.k / per_byte, width = (rows.k1 - rows.k0) / per_byte;
      for (int64_t r = 0; r < rows.end - rows.begin; ++r)
        std::copy_n(from.begin() + (rows.begin + r) * pitch + rows.k0 / per_byte, width,
                    to.begin() + r * width);
    };
    take(EncodedPart::kValues, 2, codes);
    take(EncodedPart::kScales, kGroup, scales);
    return;
  }
  with_quantizer([&](RowQuantizer& quantizer) {
    quantizer.quantize(*t.group, scale_of(t, quantizer), t.matrix, rows, codes, scales);
  });
}

void QuantizedView::read(size_t tensor, uint64_t offset, std::span<uint8_t> out) const {
  const Tensor& t = tensors_[tensor];
  if (out.empty()) return;
  if (t.rewrite != nullptr) return read_rewritten(t, offset, out);
  if (t.group == nullptr) return source_.read(t.stored, offset, out);
  if (is_solved(*t.group) && t.part != EncodedPart::kBias) return read_solved(t, offset, out);
  switch (t.part) {
    case EncodedPart::kValues:
    case EncodedPart::kScales:
      return read_bytes(t, offset, out);
    case EncodedPart::kBias:
      return read_bias(t, offset, out);
    default:
      with_quantizer([&](RowQuantizer& quantizer) {
        const float written = scale_of(t, quantizer).written;
        std::memcpy(out.data(), reinterpret_cast<const uint8_t*>(&written) + offset, out.size());
      });
  }
}

void QuantizedView::read_solved(const Tensor& t, uint64_t offset, std::span<uint8_t> out) const {
  const auto solved = solved_.of(t.number, *t.group);
  const EncodedMatrix& m = t.group->matrices()[t.matrix];
  const auto& from = solved->parts[static_cast<size_t>(m.part(t.part))];
  std::copy_n(from.begin() + static_cast<int64_t>(offset), out.size(), out.begin());
}

/// Reads bytes of codes or block scales as whole rows.
void QuantizedView::read_bytes(const Tensor& t, uint64_t offset, std::span<uint8_t> out) const {
  const EncodedMatrix& m = t.group->matrices()[t.matrix];
  const int64_t width = t.part == EncodedPart::kValues ? m.k / 2 : m.k / kGroup;
  const int64_t step = t.group->strip_rows(*m.source);
  const auto begin = static_cast<int64_t>(offset), end = begin + static_cast<int64_t>(out.size());
  with_quantizer([&](RowQuantizer& quantizer) {
    const GroupScale scale = scale_of(t, quantizer);
    std::vector<uint8_t> codes, scales;
    for (int64_t row = begin / width; row * width < end; row += step) {
      const RowRange rows{row, std::min(row + step, (end + width - 1) / width), 0, m.k};
      const auto count = static_cast<size_t>(rows.end - rows.begin);
      codes.resize(count * static_cast<size_t>(m.k / 2));
      scales.resize(count * static_cast<size_t>(m.k / kGroup));
      quantizer.quantize(*t.group, scale, t.matrix, rows, codes, scales);
      const auto& from = t.part == EncodedPart::kValues ? codes : scales;
      const int64_t lo = std::max(begin, row * width), hi = std::min(end, rows.end * width);
      std::copy(from.begin() + (lo - row * width), from.begin() + (hi - row * width),
                out.begin() + (lo - begin));
    }
  });
}

/// Reads whole grains, since rewrites make whole grains.
void QuantizedView::read_rewritten(const Tensor& t, uint64_t offset, std::span<uint8_t> out) const {
  const uint64_t grain = t.rewrite->grain(), step = t.rewrite->step(), end = offset + out.size();
  with_quantizer([&](RowQuantizer& quantizer) {
    std::vector<uint8_t> bytes;
    for (uint64_t begin = offset / grain * grain; begin < end; begin += step) {
      bytes.resize(std::min({step, t.info.bytes() - begin, (end - begin + grain - 1) / grain * grain}));
      quantizer.rewrite(*t.rewrite, begin, bytes);
      const uint64_t lo = std::max(offset, begin), hi = std::min(end, begin + bytes.size());
      std::memcpy(&out[lo - offset], &bytes[lo - begin], hi - lo);
    }
  });
}

void QuantizedView::read_bias(const Tensor& t, uint64_t offset, std::span<uint8_t> out) const {
  const EncodedMatrix& m = t.group->matrices()[t.matrix];
  const size_t bias = *m.source->bias;
  const auto width = static_cast<size_t>(dtype_bits(source_.tensors()[bias].dtype)) / 8;
  std::vector<uint8_t> all(static_cast<size_t>(m.source->n) * width), own;
  source_.read(bias, static_cast<uint64_t>(m.expert) * all.size(), all);
  for (int64_t r = 0; r < m.rows; ++r) {
    const auto at = all.begin() + static_cast<int64_t>(width) * (m.first + r * m.step);
    own.insert(own.end(), at, at + static_cast<int64_t>(width));
  }
  std::copy_n(own.begin() + static_cast<int64_t>(offset), out.size(), out.begin());
}

/// A config file of the plan. Null if none is written.
Json planned_json(const std::map<std::string, std::string>& texts, const char* name) {
  const auto at = texts.find(name);
  return at == texts.end() ? Json(nullptr) : parse_json(name, at->second);
}

}  // namespace

QuantizedSource open_quantized(Checkpoint source, const Recipe& recipe, const MakeRowQuantizer& make,
                               const MemoryLimits& limits, int threads) {
  auto view = std::make_shared<QuantizedView>(std::move(source), make);
  auto planned = plan_computed(view->stored(), recipe, limits);
  if (!planned) return {std::move(*view).give_back()};
  const auto made = std::make_shared<const ComputedPlan>(std::move(*planned));
  view->show(made);
  view->set_threads(limits, threads);

  std::vector<TensorInfo> tensors;
  std::vector<uint32_t> shards;
  for (const QuantizedView::Tensor& t : view->tensors()) {
    tensors.push_back(t.info);
    shards.push_back(t.shard);
  }
  const Checkpoint& c = view->stored();
  Json config = made->quantizes ? planned_json(made->texts, "config.json") : c.config();
  Json hf_quant_config =
      made->quantizes ? planned_json(made->texts, "hf_quant_config.json") : c.hf_quant_config();
  return {Checkpoint::over(view, std::move(tensors), std::move(shards), std::move(config),
                           std::move(hf_quant_config), made->findings),
          made, &c};
}

}  // namespace twofour
