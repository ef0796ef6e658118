#include "lib/run/decoder/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "formats/atom.h"
#include "formats/error.h"
#include "kernels/device/check.h"
#include "kernels/device/isa.h"
#include "kernels/floats/float_ops.h"
#include "lib/base/threads/interrupt.h"
#include "lib/recipe/artifact/open_unpacked.h"
#include "lib/run/blocks/state.h"
#include "lib/run/device_blocks/device_run.h"
#include "lib/run/device_blocks/device_sequence.h"
#include "lib/source/config/model_config.h"
#include "lib/source/model/settings.h"

namespace twofour {
namespace {

std::unique_ptr<DecoderState> make_state(Checkpoint checkpoint) {
  const std::string where = (checkpoint.path() / "config.json").string();
  if (checkpoint.config().is_null()) throw Error(fmt::format("{}: expected a config, found none", where));
  const auto model = find_language_model(checkpoint.config());
  const FamilyTraits* traits = model ? find_family_traits(model->model_type) : nullptr;
  if (traits == nullptr || (model->is_nested && !traits->nested)) {
    const Json& config = checkpoint.config();
    const auto type = config.is_object() ? config.find("model_type") : config.end();
    const std::string found = model && model->is_nested ? "a model with other inputs than text"
                              : config.is_object() && type != config.end() && type->is_string()
                                  ? type->get<std::string>()
                                  : std::string("none");
    throw Error(fmt::format("{}: model_type: expected a family that can be run ({}), found {}", where,
                            decoder_families(), found));
  }
  auto state = std::make_unique<DecoderState>(std::move(checkpoint));
  // The earlier model pointed into a checkpoint that was moved since.
  const Json& config = state->checkpoint.config();
  const Json& own = *find_language_model(config)->config;
  const Settings settings(*model->family, own, where + ": ", model->is_nested ? &config : nullptr);
  state->shape = read_model_shape(settings, model->model_type);
  bind_weights(*state, settings.sizes());
  return state;
}

}  // namespace

Decoder Decoder::open(const std::filesystem::path& path, ZeroPoints zero_points) {
  return Decoder(open_source(path, ReadPath::kFast, {}, Io::kCached, zero_points));
}
Decoder::Decoder(Checkpoint checkpoint) : state_(make_state(std::move(checkpoint))) {}
Decoder::Decoder(Decoder&&) noexcept = default;
Decoder& Decoder::operator=(Decoder&&) noexcept = default;
Decoder::~Decoder() = default;

void Decoder::use_cuda(uint64_t memory) {
  if (!state_->shape.runs_on_cuda())
    throw Error(
        fmt::format("{}: model_type: expected a family that runs on CUDA, found {}, which runs on the CPU",
                    (state_->checkpoint.path() / "config.json").string(), state_->shape.family));
  device_ = std::make_unique<DeviceRun>(*state_, memory);
}
Device Decoder::device() const { return device_ ? Device::cuda : Device::cpu; }
uint64_t Decoder::device_bytes_of_token() const { return device_ ? device_->weights().bytes_of_token() : 0; }
uint64_t Decoder::device_weight_bytes() const { return device_ ? device_->weights().bytes() : 0; }

const ModelShape& Decoder::shape() const { return state_->shape; }
const Checkpoint& Decoder::checkpoint() const { return state_->checkpoint; }

uint64_t Decoder::bytes_per_token() const {
  const ModelShape& m = state_->shape;
  const AttentionShape& a = m.attention;
  const int64_t attention =
      a.heads * (a.head_size + a.value_size) + a.kv_heads * (a.head_size + a.value_size) +
      (a.kv_rank > 0 ? a.heads * (a.head_size + a.value_size) + 2 * a.kv_rank + a.q_rank : 0) +
      (a.has_gate ? 2 * a.heads * a.head_size : 0);
  // Linear attention: projections before and after their order; what is read, and its norm. Mamba-2: the
  // same.
  const DeltaShape& d = m.delta;
  const StateSpaceShape& ss = m.state_space;
  // Compressed entries: projections, outputs in two steps, and the scores of the index.
  const CompressedShape& c = m.compressed;
  const int64_t compressed = c.ratios.empty()
                                 ? 0
                                 : a.q_rank + 2 * a.heads * a.head_size + 6 * a.head_size +
                                       2 * c.groups * c.rank + a.heads * a.head_size / c.groups +
                                       c.index_heads * (c.index_size + 1) + 6 * c.index_size + c.chosen;
  const int64_t heads =
      std::max({attention, compressed, 2 * d.channels() + 3 * d.values() + 4 * d.value_heads,
                2 * ss.projected() + ss.channels() + 2 * ss.values()});
  // Mixed streams: a half's input and output, and the mix.
  const int64_t n = m.streams.count, streams = m.streams.are_mixed() ? 2 * m.hidden + 2 * n * (n + 2) : 0;
  const int64_t mlp = 2 * std::max(m.width, m.shared_width);
  const int64_t experts =
      m.experts > 0 ? m.experts + m.top_k * (2 * m.expert_inputs() + 2 * m.expert_width) + 2 * m.latent : 0;
  return sizeof(float) * static_cast<uint64_t>(2 * m.hidden + streams + std::max(heads, mlp + experts));
}

uint64_t Decoder::fixed_bytes() const {
  const DeltaShape& d = state_->shape.delta;
  // A sequence without a cache has the state of one layer at a time. Windows of compressed entries are
  // counted with the tokens.
  const ModelShape& m = state_->shape;
  const StateSpaceShape& ss = m.state_space;
  const auto one_state =
      static_cast<uint64_t>(std::max(d.window() + d.recurrent(), ss.window() + ss.recurrent()));
  const int64_t n = m.streams.count, mixer = m.streams.are_mixed() ? n * (n + 2) * m.residual() : 0;
  return ModelWeights::kChunkBytes + (uint64_t{64} << 20) +
         sizeof(float) * (one_state + static_cast<uint64_t>(mixer));
}

uint64_t Decoder::cache_bytes_per_token() const {
  const AttentionShape& a = state_->shape.attention;
  const auto& mixers = state_->shape.mixers;
  const auto layers = std::count(mixers.begin(), mixers.end(), Mixer::kAttention);
  int64_t numbers = layers * a.kv_heads * (a.head_size + a.value_size);
  // An entry, and where entries overlap a key of the index, for every `ratio` tokens
  const CompressedShape& c = state_->shape.compressed;
  for (const int64_t ratio : c.ratios) {
    if (ratio > 0) numbers += ceil_div(a.head_size + (c.overlaps(ratio) ? c.index_size : 0), ratio);
  }
  return sizeof(float) * static_cast<uint64_t>(numbers);
}

uint64_t Decoder::state_bytes() const {
  const DeltaShape& d = state_->shape.delta;
  const auto& mixers = state_->shape.mixers;
  const StateSpaceShape& ss = state_->shape.state_space;
  int64_t numbers =
      std::count(mixers.begin(), mixers.end(), Mixer::kDelta) * (d.window() + d.recurrent()) +
      std::count(mixers.begin(), mixers.end(), Mixer::kStateSpace) * (ss.window() + ss.recurrent());
  // The window, and values and gates of the tokens that have no entry yet, or that overlap
  const CompressedShape& c = state_->shape.compressed;
  for (const int64_t ratio : c.ratios) {
    const int64_t size = state_->shape.attention.head_size;
    numbers += (c.window - 1) * size;
    numbers += c.overlaps(ratio) ? (2 * ratio - 1) * 4 * (size + c.index_size)
               : ratio > 0       ? (ratio - 1) * 2 * size
                                 : 0;
  }
  return sizeof(float) * static_cast<uint64_t>(numbers);
}

void Decoder::embed(std::span<const int32_t> tokens, std::span<float> hidden) const {
  const int64_t h = state_->shape.hidden, all = state_->shape.residual();
  check(hidden.size() == tokens.size() * static_cast<size_t>(all), "memory for the rows");
  check_tokens(tokens);
  ModelWeights::Worker worker = state_->weights.make_worker();
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto row = hidden.subspan(i * static_cast<size_t>(all), static_cast<size_t>(all));
    read_stored_rows(worker.reader, *state_->embedding.module, state_->embedding.place, tokens[i],
                     tokens[i] + 1, row.first(static_cast<size_t>(h)));
    if (state_->shape.embedding_scale != 1) {
      for (float& v : row.first(static_cast<size_t>(h)))
        v *= static_cast<float>(state_->shape.embedding_scale);
    }
    for (int64_t stream = 1; stream < state_->shape.streams.count; ++stream)
      std::copy_n(row.begin(), h, row.begin() + stream * h);
  }
}

void Decoder::check_tokens(std::span<const int32_t> tokens) const {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokens[i] < 0 || tokens[i] >= state_->shape.vocabulary) {
      throw Error(fmt::format("token {}: expected 0 to {}, the vocabulary of {}, found {}", i,
                              state_->shape.vocabulary - 1, state_->checkpoint.path().string(), tokens[i]));
    }
  }
}

void Decoder::run_layer(int64_t layer, std::span<const SequencePart> batch, std::span<float> hidden,
                        LayerWatcher* watcher) const {
  check_interrupt();
  int64_t tokens = 0;
  for (const SequencePart& part : batch) tokens += part.count;
  check(hidden.size() == static_cast<size_t>(tokens * state_->shape.residual()), "the tokens of the batch");
  run_half(layer, LayerHalf::kAttention, batch, hidden, {.watcher = watcher});
  run_half(layer, LayerHalf::kFeedForward, batch, hidden, {.watcher = watcher});
}

void Decoder::run_half(int64_t layer, LayerHalf half, std::span<const SequencePart> batch,
                       std::span<float> hidden, const HalfRun& run) const {
  check_interrupt();
  check(!run.last || half_of(*run.last) == half, "a stage of the half");
  if (device_) return device_->run_half(layer, half, batch, hidden, run);
  run_half_on_cpu(*state_, layer, half, batch, hidden, run);
}

void Decoder::run_half_on_device(int64_t layer, LayerHalf half, std::span<const SequencePart> batch,
                                 float* hidden, const HalfRun& run) const {
  check_interrupt();
  check(!run.last || half_of(*run.last) == half, "a stage of the half");
  check(device_ != nullptr, "a model on the device");
  device_->run_half_in_place(layer, half, batch, hidden, run);
}

bool Decoder::can_begin_late(int64_t layer, LayerHalf half) const {
  const FeedForwardWeights& f = state_->layers[at(layer)].feed_forward;
  if (half == LayerHalf::kAttention) return state_->shape.mixers[at(layer)] == Mixer::kAttention;
  if (device_ && device_->weights().layer(layer).mlp.block) return false;
  return state_->shape.has_feed_forward(layer) && f.experts.empty() && !f.shared_gate;
}

size_t Decoder::late_group(int64_t layer, LayerHalf half) const {
  const LayerWeights& w = state_->layers[at(layer)];
  return half == LayerHalf::kAttention ? w.attention.output_group : w.feed_forward.down_group;
}

void Decoder::replace_weights(Checkpoint weights) {
  state_->weights.replace(std::move(weights));
  if (device_) device_->weights().forget();
}

void Decoder::restore_weights() {
  state_->weights.restore();
  if (device_) device_->weights().forget();
}

void Decoder::read_linear(const std::string& name, int64_t n0, int64_t n1, std::span<float> out) const {
  state_->weights.read_rows(state_->linears.at(name), n0, n1, out);
}

int64_t Decoder::rows_of_linear(const std::string& name) const { return state_->linears.at(name).n; }

const std::vector<InputGroup>& Decoder::input_groups(int64_t layer) const {
  return state_->layers[at(layer)].groups;
}

std::optional<InputGroup> Decoder::head_group() const {
  if (state_->shape.is_tied) return std::nullopt;
  return InputGroup{.linears = {state_->head.name}, .k = state_->shape.hidden};
}

std::vector<float> Decoder::normalize(std::span<const float> hidden) const {
  std::vector<float> x = read_head_stream(*state_, hidden);
  const auto m = static_cast<int64_t>(x.size()) / state_->shape.hidden;
  cpu::rms_norm(x.data(), m, state_->weights.read(state_->norm), state_->shape.epsilon, x.data());
  return x;
}

void Decoder::run_head(std::span<const float> hidden, std::span<float> logits) const {
  check_interrupt();
  const auto m = static_cast<int64_t>(hidden.size()) / state_->shape.residual();
  check(logits.size() == static_cast<size_t>(m * state_->shape.vocabulary), "memory for the logits");
  if (device_) return device_->run_head(hidden, logits);
  state_->weights.multiply(state_->head, normalize(hidden).data(), m, logits.data());
}

DecoderSequence::DecoderSequence(const Decoder& decoder)
    : decoder_(decoder), layers_(static_cast<size_t>(decoder.shape().layers)) {
  if (decoder.device_) device_ = std::make_unique<DeviceSequence>(*decoder.state_, *decoder.device_);
}
DecoderSequence::DecoderSequence(DecoderSequence&&) noexcept = default;
DecoderSequence::~DecoderSequence() = default;

void DecoderSequence::reserve(int64_t tokens) {
  if (device_) device_->reserve(std::min(tokens, decoder_.shape().positions));
}

void DecoderSequence::check_room(int64_t count) const {
  const int64_t most = decoder_.shape().positions;
  if (size_ + count <= most) return;
  throw Error(fmt::format("{}: expected at most the {} tokens of max_position_embeddings, found {}",
                          decoder_.checkpoint().path().string(), most, size_ + count));
}

std::vector<float> DecoderSequence::append(std::span<const int32_t> tokens, bool all) {
  const ModelShape& m = decoder_.shape();
  const auto count = static_cast<int64_t>(tokens.size());
  check(count > 0, "tokens to append");
  check_room(count);
  chosen_.reset();
  if (device_) {
    check_interrupt();
    decoder_.check_tokens(tokens);
    std::vector<float> logits = device_->append(tokens, size_, all);
    size_ += count;
    return logits;
  }
  const auto width = static_cast<size_t>(m.residual());
  std::vector<float> hidden(tokens.size() * width);
  decoder_.embed(tokens, hidden);
  for (int64_t layer = 0; layer < m.layers; ++layer) {
    const SequencePart part{count, size_, &layers_[static_cast<size_t>(layer)], tokens.data()};
    decoder_.run_layer(layer, {&part, 1}, hidden);
  }
  size_ += count;
  std::span<const float> wanted(hidden);
  if (!all) wanted = wanted.last(width);
  const auto vocabulary = static_cast<size_t>(m.vocabulary);
  std::vector<float> logits(wanted.size() / width * vocabulary);
  decoder_.run_head(wanted, logits);
  last_.assign(logits.end() - static_cast<int64_t>(vocabulary), logits.end());
  return logits;
}

std::vector<LikelyToken> DecoderSequence::choose(int64_t count) {
  check(size_ > 0, "tokens after which to choose");
  std::vector<LikelyToken> made;
  const int64_t more = chosen_ ? count : count - 1;
  check_room(more);
  if (device_) {
    check_interrupt();
    const std::vector<cuda::LogitFigures> figures = device_->extend(size_, more);
    for (size_t i = figures.size() - static_cast<size_t>(count); i < figures.size(); ++i)
      made.push_back({figures[i].top, static_cast<double>(figures[i].most) - figures[i].log_sum});
    size_ += more;
    chosen_ = made.back().token;
    return made;
  }
  while (static_cast<int64_t>(made.size()) < count) {
    if (chosen_) append({&*chosen_, 1});
    const auto top = std::max_element(last_.begin(), last_.end());
    const double sum = float_ops(best_isa()).log_sum_exp(last_.data(), static_cast<int64_t>(last_.size()));
    const bool finite = std::isfinite(sum);
    made.push_back({static_cast<int32_t>(top - last_.begin()),
                    finite ? static_cast<double>(*top) - sum : std::numeric_limits<double>::quiet_NaN()});
    chosen_ = made.back().token;
    if (!finite) break;
  }
  return made;
}

}  // namespace twofour
