#include <algorithm>

#include "kernels/device/device.h"
#include "lib/base/threads/passive_waiting.h"
#include "lib/jobs/compress/compress.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// Storing states may delay a run by one part in this number of its time.
constexpr int kStoringShare = 10;

}  // namespace

/// Stores the state after `layers` complete layers. The thread that runs layers changes nothing of it.
void Compression::store_state(int64_t layers) {
  file_->flush();
  while (std::cmp_less(state_.statistics.size(), layers))
    state_.statistics.push_back(hash_statistics(static_cast<int64_t>(state_.statistics.size())));
  state_.layers = layers;
  state_.streams = layers == steps() ? "" : streams_->keep(layers);
  state_.write(work_);
}

void Compression::keep_layer(int64_t end) {
  if (device_sums_) device_sums_->wait();
  check_unchanged();  // otherwise one layer could have data of two models
  ++layers_done_;
  waited_ = std::max(waited_, storing_.wait());
  // A state keeps the file of the streams that the state before it names, in case that the run is killed
  // meanwhile. So an odd number of layers is between states with streams.
  const bool is_possible = state_.layers == 0 || (layers_done_ - state_.layers) % 2 == 1;
  const bool is_last = layers_done_ == end;
  const bool is_needed =
      is_last || !streams_in_memory_ || (layers_done_ + 1 == end && (end - state_.layers) % 2 == 0);
  const auto now = std::chrono::steady_clock::now();
  if (!is_needed && (!is_possible || now - stored_ < kStoringShare * waited_)) return;
  waited_ = {};
  stored_ = now;
  if (is_last || !streams_in_memory_) return store_state(layers_done_);
  storing_.start([this, layers = layers_done_, device = device_sums_ ? current_cuda_device() : -1] {
    const CudaDeviceScope scope(device);
    store_state(layers);
  });
}

/// Counts the part of a layer's work that begins at `begin` and ends at `end`, both from 0 to 1.
void Compression::advance(double begin, double end, size_t tokens) {
  const double share = tokens_ > 0 ? static_cast<double>(tokens) / static_cast<double>(tokens_) : 1;
  progress_->tokens = tokens;
  progress_->done = layer_begin_ + static_cast<uint64_t>((begin + (end - begin) * share) *
                                                         static_cast<double>(layer_bytes_));
}

void Compression::collect_layers(int64_t end) {
  while (layers_done_ < end) {
    layer_begin_ = progress_->done;
    progress_->layer = layers_done_ + 1;
    if (layers_done_ < layers()) {
      collect_layer(layers_done_);
    } else {
      collect_head();
    }
    progress_->done = layer_begin_ + layer_bytes_;
    keep_layer(end);
  }
}

void Compression::collect(const fs::path& work, Progress& progress, int64_t end) {
  const PassiveWaiting waiting;
  progress_ = &progress;
  progress.phase = "checking what was collected";
  start(work);
  progress.phase = "collecting";
  uint64_t weights = 0;
  for (const TensorInfo& t : dense_.checkpoint().tensors()) weights += t.bytes();
  layer_bytes_ = weights / static_cast<uint64_t>(steps());
  progress.total = static_cast<uint64_t>(steps() - layers_done_) * layer_bytes_;
  progress.layers = steps();
  progress.all_tokens = static_cast<uint64_t>(tokens_);
  try {
    collect_layers(std::min(steps(), end));
  } catch (...) {
    storing_.abandon();
    throw;
  }
  streams_.reset();
  kept_ = FloatArray();
  if (end < steps()) return;
  writer_.write_header();
  file_->flush();
  for (const char* name : {"streams-even", "streams-odd"}) fs::remove(work_ / name);
}

}  // namespace twofour
