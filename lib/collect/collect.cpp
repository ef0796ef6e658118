#include "lib/collect/collect.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>

#include "formats/error.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "kernels/floats/float_multiply.h"
#include "lib/io/file.h"
#include "lib/statistics/check_statistics.h"
#include "lib/statistics/statistics.h"

namespace twofour {
namespace {

constexpr uint64_t kBatchBytes = 512 << 20;
constexpr const char* kHeldOut = "heldout.";

size_t at(int64_t i) { return static_cast<size_t>(i); }

/// One entry of the file.
struct Entry {
  std::string name;
  std::vector<std::string> linears;
  int64_t k = 0, times = 1;
};

/// The entries of a layer: those of its groups in their order and, where it has experts, the one that stands
/// in for the downs of experts without tokens.
std::vector<Entry> entries_of(const std::vector<InputGroup>& groups) {
  std::vector<Entry> entries;
  Entry shared;
  for (const InputGroup& g : groups) {
    entries.push_back({g.linears.front(), g.linears, g.k, g.times});
    if (g.expert < 0) continue;
    shared.name = g.block + ".down_proj";
    shared.k = g.k;
    shared.linears.push_back(g.linears.front());
  }
  if (!shared.linears.empty()) entries.push_back(std::move(shared));
  return entries;
}

std::string block_of(const std::vector<InputGroup>& groups) {
  for (const InputGroup& g : groups) {
    if (!g.block.empty()) return g.block;
  }
  return {};
}

/// Sums over the tokens of an entry.
struct Sums {
  std::vector<float> products;  ///< [K, K], the upper triangle
  int64_t count = 0;
  float amax = 0;

  void add(std::span<const float> x, int64_t k) {
    if (products.empty()) products.resize(at(k * k));
    const auto rows = static_cast<int64_t>(x.size()) / k;
    count += rows;
    for (const float v : x) amax = std::max(amax, std::abs(v));
    cpu::add_products(x.data(), rows, k, products.data());
  }
  void add(const Sums& other, int64_t k) {
    if (other.count == 0) return;
    if (products.empty()) products.resize(at(k * k));
    count += other.count;
    amax = std::max(amax, other.amax);
    for (size_t i = 0; i < products.size(); ++i) products[i] += other.products[i];
  }
};

/// Sums of one layer.
class LayerSums : public LayerWatcher {
 public:
  explicit LayerSums(const std::vector<InputGroup>& groups)
      : groups_(groups), sums_(groups.size()), saliency_(at(experts_of(groups))) {}
  void see_input(size_t group, std::span<const float> x) override { sums_[group].add(x, groups_[group].k); }
  void see_expert(int64_t expert, double sum_of_norms) override { saliency_[at(expert)] += sum_of_norms; }

  const std::vector<Sums>& sums() const { return sums_; }
  const std::vector<double>& saliency() const { return saliency_; }
  Sums shared() const {
    Sums all;
    for (size_t i = 0; i < groups_.size(); ++i) {
      if (groups_[i].expert >= 0) all.add(sums_[i], groups_[i].k);
    }
    return all;
  }
  static int64_t experts_of(const std::vector<InputGroup>& groups) {
    int64_t experts = 0;
    for (const InputGroup& g : groups) experts = std::max(experts, g.expert + 1);
    return experts;
  }

 private:
  const std::vector<InputGroup>& groups_;
  std::vector<Sums> sums_;
  std::vector<double> saliency_;
};

/// The file, its tensors all known before the first is written.
class StatisticsWriter {
 public:
  StatisticsWriter(const Decoder& model, const CollectInput& input) {
    const int64_t layers = model.shape().layers;
    for (int64_t layer = 0; layer < layers; ++layer) {
      for (const Entry& e : entries_of(model.input_groups(layer))) add(e, input.held_out > 0);
      const std::string block = block_of(model.input_groups(layer));
      if (!block.empty())
        add_tensor(block + ".saliency", DType::kF32, {LayerSums::experts_of(model.input_groups(layer))});
    }
    if (const auto head = model.head_group()) add(entries_of({*head}).front(), input.held_out > 0);
    bytes_ = assign_offsets(tensors_);
    for (const TensorInfo& t : tensors_) places_.emplace(t.name, &t);
  }

  size_t entries() const { return entries_; }
  uint64_t bytes() const { return bytes_; }

  void open(const std::filesystem::path& path, std::map<std::string, std::string> metadata) {
    metadata["format"] = "twofour statistics 1";
    metadata["structure"] = structure_of(linears_);
    metadata["groups"] = groups_.dump();
    const std::string header = format_safetensors_header(tensors_, metadata);
    begin_ = header.size();
    file_ = std::make_unique<AtomicFile>(path);
    file_->resize(begin_ + bytes_);
    file_->write(0, header);
  }

  void write(const Entry& entry, const Sums& sums, const std::string& prefix) {
    const std::string name = prefix + entry.name;
    const auto times = static_cast<float>(entry.times);
    std::vector<float> row(at(entry.k));
    uint64_t offset = 0;
    for (int64_t i = 0; i < entry.k; ++i) {
      for (int64_t j = i; j < entry.k; ++j)
        row[at(j)] = sums.products.empty() ? 0.0f : sums.products[at(i * entry.k + j)] * times;
      const std::span<const float> own = std::span<const float>(row).subspan(at(i));
      for (const float v : own) {
        if (!std::isfinite(v))
          throw Error(fmt::format("{}: expected sums that are finite, found {}", name, v));
      }
      put(name + ".hessian", offset, own);
      offset += own.size_bytes();
    }
    const int64_t count = sums.count * entry.times;
    put(name + ".count", 0, std::span(&count, 1));
    put(name + ".amax", 0, std::span(&sums.amax, 1));
    const auto squares = static_cast<double>(count);
    put(name + ".sum_squared_weights", 0, std::span(&squares, 1));
  }
  void write_saliency(const std::string& block, const std::vector<double>& sums) {
    const std::vector<float> values(sums.begin(), sums.end());
    put(block + ".saliency", 0, std::span<const float>(values));
  }
  void commit() {
    file_->flush();
    file_->commit();
  }

 private:
  void add_tensor(std::string name, DType dtype, std::vector<int64_t> shape) {
    TensorInfo t{std::move(name), dtype, std::move(shape), 0, 0};
    t.end = tensor_bytes(t.name, t.dtype, t.shape);
    tensors_.push_back(std::move(t));
  }
  void add(const Entry& e, bool held_out) {
    ++entries_;
    for (const std::string& linear : e.linears) linears_.emplace(linear, e.k);
    if (e.linears != std::vector<std::string>{e.name}) groups_[e.name] = e.linears;
    for (const char* prefix : {"", kHeldOut}) {
      if (*prefix != '\0' && !held_out) continue;
      const std::string name = prefix + e.name;
      add_tensor(name + ".hessian", DType::kF32, {e.k * (e.k + 1) / 2});
      add_tensor(name + ".count", DType::kI64, {});
      add_tensor(name + ".amax", DType::kF32, {});
      add_tensor(name + ".sum_squared_weights", DType::kF64, {});
    }
  }
  template <class T>
  void put(const std::string& name, uint64_t offset, std::span<const T> values) {
    file_->write(begin_ + places_.at(name)->begin + offset,
                 std::span(reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()));
  }

  std::vector<TensorInfo> tensors_;
  std::map<std::string, const TensorInfo*> places_;
  std::map<std::string, int64_t> linears_;
  Json groups_ = Json::object();
  size_t entries_ = 0;
  uint64_t bytes_ = 0, begin_ = 0;
  std::unique_ptr<AtomicFile> file_;
};

/// Windows [first, first + count) and their rows among those of all.
struct Batch {
  size_t first, count;
  size_t row, rows;
  bool held_out;
};

std::vector<Batch> batches_of(const CollectInput& input, int64_t at_once) {
  std::vector<Batch> batches;
  const size_t kept = input.windows.size() - at(input.held_out);
  size_t row = 0;
  for (size_t i = 0; i < input.windows.size(); ++i) {
    const bool held_out = i >= kept;
    if (batches.empty() || batches.back().count == at(at_once) || batches.back().held_out != held_out)
      batches.push_back({i, 0, row, 0, held_out});
    ++batches.back().count;
    batches.back().rows += input.windows[i].size();
    row += input.windows[i].size();
  }
  return batches;
}

int64_t windows_at_once(const Decoder& model, const CollectInput& input) {
  size_t longest = 1;
  for (const auto& w : input.windows) longest = std::max(longest, w.size());
  return static_cast<int64_t>(std::max<uint64_t>(1, kBatchBytes / (model.bytes_per_token() * longest)));
}

uint64_t bytes_of_weights(const Decoder& model) {
  uint64_t bytes = 0;
  for (const TensorInfo& t : model.checkpoint().tensors()) bytes += t.bytes();
  return bytes;
}

}  // namespace

CollectPlan plan_collection(const Decoder& model, const CollectInput& input) {
  CollectPlan plan;
  const size_t kept = input.windows.size() - at(input.held_out);
  size_t longest = 0;
  for (size_t i = 0; i < input.windows.size(); ++i) {
    longest = std::max(longest, input.windows[i].size());
    (i < kept ? plan.tokens : plan.held_out_tokens) += static_cast<int64_t>(input.windows[i].size());
  }
  if (static_cast<int64_t>(longest) > model.shape().positions) {
    throw Error(
        fmt::format("{}: expected windows of at most the {} tokens of max_position_embeddings, found {}",
                    model.checkpoint().path().string(), model.shape().positions, longest));
  }
  uint64_t sums = 0;
  for (int64_t layer = 0; layer < model.shape().layers; ++layer) {
    uint64_t own = 0, down = 0;
    for (const InputGroup& g : model.input_groups(layer)) {
      const uint64_t square = sizeof(float) * static_cast<uint64_t>(g.k) * static_cast<uint64_t>(g.k);
      own += square;
      if (g.expert >= 0) down = square;
    }
    sums = std::max(sums, own + down);
  }
  const uint64_t all = static_cast<uint64_t>(plan.tokens + plan.held_out_tokens);
  const uint64_t batch = std::min<uint64_t>(all, longest * at(windows_at_once(model, input)));
  const StatisticsWriter writer(model, input);
  plan.entries = writer.entries();
  plan.file_bytes = writer.bytes();
  plan.peak_memory = sums * (input.held_out > 0 ? 2 : 1) + all * sizeof(float) * at(model.shape().hidden) +
                     batch * model.bytes_per_token() + model.fixed_bytes();
  plan.weights_read = bytes_of_weights(model) * batches_of(input, windows_at_once(model, input)).size();
  return plan;
}

void collect_statistics(const Decoder& model, const CollectInput& input, const std::filesystem::path& out,
                        Progress& progress) {
  const CollectPlan plan = plan_collection(model, input);
  const ModelShape& m = model.shape();
  progress.phase = "collecting";
  progress.total = plan.weights_read;
  StatisticsWriter writer(model, input);
  writer.open(out, {{"weights", final_norm_hash(model.checkpoint())},
                    {"tokens", fmt::format("{}", plan.tokens)},
                    {"text", input.text},
                    {"weighting", "plain"}});
  std::vector<int32_t> tokens;
  for (const auto& w : input.windows) tokens.insert(tokens.end(), w.begin(), w.end());
  std::vector<float> hidden(tokens.size() * at(m.hidden));
  model.embed(tokens, hidden);
  const std::vector<Batch> batches = batches_of(input, windows_at_once(model, input));
  const auto rows_of = [&](const Batch& b) {
    return std::span(hidden).subspan(b.row * at(m.hidden), b.rows * at(m.hidden));
  };
  const auto write_all = [&](const std::vector<Entry>& entries, const LayerSums& sums,
                             const std::string& prefix) {
    for (size_t i = 0; i < sums.sums().size(); ++i) writer.write(entries[i], sums.sums()[i], prefix);
    if (entries.size() > sums.sums().size()) writer.write(entries.back(), sums.shared(), prefix);
  };
  const uint64_t layer_bytes = bytes_of_weights(model) / at(m.layers);
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    const std::vector<InputGroup>& groups = model.input_groups(layer);
    LayerSums sums(groups), held_out(groups);
    for (const Batch& b : batches) {
      std::vector<SequencePart> parts;
      for (size_t i = 0; i < b.count; ++i)
        parts.push_back({static_cast<int64_t>(input.windows[b.first + i].size()), 0, nullptr});
      model.run_layer(layer, parts, rows_of(b), b.held_out ? &held_out : &sums);
      progress.done += layer_bytes;
    }
    const std::vector<Entry> entries = entries_of(groups);
    write_all(entries, sums, "");
    if (input.held_out > 0) write_all(entries, held_out, kHeldOut);
    if (const std::string block = block_of(groups); !block.empty())
      writer.write_saliency(block, sums.saliency());
  }
  if (const auto head = model.head_group()) {
    const std::vector<InputGroup> groups{*head};
    LayerSums sums(groups), held_out(groups);
    for (const Batch& b : batches) {
      model.normalize(rows_of(b));
      (b.held_out ? held_out : sums).see_input(0, rows_of(b));
    }
    write_all(entries_of(groups), sums, "");
    if (input.held_out > 0) write_all(entries_of(groups), held_out, kHeldOut);
  }
  writer.commit();
}

}  // namespace twofour
