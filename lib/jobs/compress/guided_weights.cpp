#include "lib/jobs/compress/guided_weights.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "formats/safetensors.h"
#include "lib/base/io/file.h"
#include "lib/run/collect/backward_pass.h"
#include "lib/run/collect/gradient_sums.h"

namespace twofour {
namespace {

int64_t tokens_of_windows(const GuidedTokens& tokens) {
  int64_t all = 0;
  for (const auto& w : tokens.windows) all += static_cast<int64_t>(w.size());
  return all;
}

/// The tensors of the file, in the order of names.
std::vector<TensorInfo> weight_tensors(const GuidedTokens& tokens) {
  std::vector<TensorInfo> tensors;
  for (const std::string& linear : tokens.linears) {
    TensorInfo t{linear + ".token_weights", DType::kF32, {1, tokens_of_windows(tokens)}, 0, 0};
    t.end = tensor_bytes(t.name, t.dtype, t.shape);
    tensors.push_back(std::move(t));
  }
  assign_offsets(tensors);
  return tensors;
}

/// The weights of all tokens for the products of one layer.
class LayerTokenWeights : public GradientWatcher {
 public:
  explicit LayerTokenWeights(size_t tokens) : tokens_(tokens) {}
  GradientWatcher* begin_batch(const TokenBatch& batch) {
    batch_ = &batch;
    return this;
  }
  void see_gradient(size_t, std::span<const float>, std::span<const int64_t> tokens,
                    std::span<const OutputGradient> outputs) override {
    const size_t rows = tokens.empty() ? batch_->rows : tokens.size();
    Product& to = products_[outputs.front().linear];
    if (to.weights.empty()) {
      to.weights.resize(tokens_);
      for (const OutputGradient& o : outputs) to.linears.push_back(o.linear);
    }
    const std::vector<double> e = mean_squared_gradients(outputs, rows);
    for (size_t i = 0; i < rows; ++i) {
      const size_t token = tokens.empty() ? i : static_cast<size_t>(tokens[i]);
      to.weights[batch_->row + token] = static_cast<float>(std::sqrt(e[i]));
    }
    to.reached += rows;
  }
  /// Calls put(linear, weights) for each linear that tokens reached.
  void finish(const std::function<void(const std::string&, std::span<const float>)>& put) {
    for (auto& [name, p] : products_) {
      double sum = 0;
      for (const float w : p.weights) sum += static_cast<double>(w);
      const double factor = sum > 0 ? static_cast<double>(p.reached) / sum : 0;
      for (float& w : p.weights) w = static_cast<float>(static_cast<double>(w) * factor);
      for (const std::string& linear : p.linears) put(linear, p.weights);
    }
  }

 private:
  struct Product {
    std::vector<std::string> linears;
    std::vector<float> weights;
    size_t reached = 0;
  };
  size_t tokens_;
  const TokenBatch* batch_ = nullptr;
  std::map<std::string, Product> products_;  ///< by the first linear
};

}  // namespace

void write_guided_weights(const Decoder& model, const GuidedTokens& tokens,
                          const std::filesystem::path& streams, const std::filesystem::path& out,
                          const std::function<void(double)>& done) {
  const std::vector<TensorInfo> tensors = weight_tensors(tokens);
  const std::string header = format_safetensors_header(tensors, {});
  std::map<std::string, uint64_t> places;
  size_t i = 0;
  for (const std::string& linear : tokens.linears) places[linear] = header.size() + tensors[i++].begin;
  AtomicFile file(out);
  file.resize(header.size() + (tensors.empty() ? 0 : tensors.back().end));
  file.write(0, header);

  BackwardPass pass(model, tokens.windows, streams);
  const auto all = static_cast<size_t>(tokens_of_windows(tokens));
  const int64_t layers = model.shape().layers;
  // Backward takes about three times as long as forward.
  const double step = 1.0 / (4.0 * static_cast<double>(layers) * static_cast<double>(all));
  double share = 0;
  pass.run_forward([&](size_t rows) { done(share += step * static_cast<double>(rows)); });
  for (int64_t layer = layers; layer >= 0; --layer) {
    LayerTokenWeights weights(all);
    const auto watch = [&](const TokenBatch& b) { return weights.begin_batch(b); };
    const auto advance = [&](const TokenBatch& b) {
      if (layer < layers) done(share += 3 * step * static_cast<double>(b.rows));
    };
    if (layer == layers) {
      pass.run_head(watch, advance);
    } else {
      pass.run_layer(layer, watch, advance);
    }
    weights.finish([&](const std::string& linear, std::span<const float> values) {
      const auto at = places.find(linear);
      if (at == places.end()) return;
      file.write(at->second, {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()});
    });
  }
  file.flush();
  file.commit();
}

uint64_t guided_weights_bytes(const GuidedTokens& tokens) {
  const std::vector<TensorInfo> tensors = weight_tensors(tokens);
  return format_safetensors_header(tensors, {}).size() + (tensors.empty() ? 0 : tensors.back().end);
}

uint64_t guided_weights_memory(const Decoder& model, const GuidedTokens& tokens) {
  size_t most = 1;
  for (int64_t layer = 0; layer < model.shape().layers; ++layer) {
    size_t products = 0;
    for (const InputGroup& g : model.input_groups(layer))
      products += is_input_of_experts(g) ? g.linears.size() / 2 : g.linears.size();
    most = std::max(most, products);
  }
  return most * sizeof(float) * static_cast<uint64_t>(tokens_of_windows(tokens)) +
         BackwardPass::bytes_of_batch(model, tokens.windows);
}

}  // namespace twofour
