#include <algorithm>
#include <memory>
#include <mutex>
#include <span>
#include <string>

#include "formats/error.h"
#include "kernels/device/device.h"
#include "lib/run/decoder/decoder.h"
#include "lib/run/runtime/c_guard.h"
#include "lib/run/runtime/kernel_weights.h"
#include "lib/run/runtime/twofour.h"

using namespace twofour;

struct twofour_model {
  Decoder decoder;
  int cuda_device = -1;  ///< index of the CUDA device; -1 for the CPU
  /// Held during calls on CUDA, because sequences share one DeviceRun.
  mutable std::mutex turn{};

  /// Runs `work` on the model's device, one call at a time.
  template <class F>
  void on_device(F&& work) const {
    if (cuda_device < 0) return work();
    const std::lock_guard lock(turn);
    const CudaDeviceScope scope(cuda_device);
    work();
  }
};

struct twofour_sequence {
  explicit twofour_sequence(const twofour_model& from) : model(from), tokens(from.decoder) {}
  const twofour_model& model;
  DecoderSequence tokens;
};

int twofour_open_model(const char* path, twofour_model** model) {
  return twofour_open_model_on(path, TWOFOUR_CPU, model);
}

int twofour_open_model_on(const char* path, int device, twofour_model** model) {
  return twofour_open_model_with(path, device, "", model);
}

int twofour_open_model_with(const char* path, int device, const char* zero_points, twofour_model** model) {
  return guarded([&] {
    given(model, "model") = nullptr;
    const std::string name = &given(path, "path");
    const ZeroPoints word = parse_zero_points(&given(zero_points, "zero_points"));
    int index = -1;
    const bool is_on_cuda = device_of(device, index) == Device::cuda;
    if (is_on_cuda) index = chosen_cuda_device(name, index);
    auto opened = std::unique_ptr<twofour_model>(new twofour_model{Decoder::open(name, word), index});
    if (is_on_cuda) opened->on_device([&] { opened->decoder.use_cuda(); });
    *model = opened.release();
  });
}

void twofour_close_model(twofour_model* model) { delete model; }

int twofour_get_model_info(const twofour_model* model, twofour_model_info* info) {
  return guarded([&] {
    const ModelShape& shape = given(model, "model").decoder.shape();
    twofour_model_info& to = sized(info, "twofour_model_info");
    to.layers = shape.layers, to.hidden = shape.hidden, to.vocabulary = shape.vocabulary;
  });
}

int twofour_begin_sequence(const twofour_model* model, twofour_sequence** sequence) {
  return guarded([&] {
    given(sequence, "sequence") = nullptr;
    const twofour_model& of = given(model, "model");
    of.on_device([&] { *sequence = new twofour_sequence(of); });
  });
}

void twofour_end_sequence(twofour_sequence* sequence) { delete sequence; }

int twofour_append(twofour_sequence* sequence, const int32_t* tokens, int64_t count, int32_t all,
                   float* logits) {
  return guarded([&] {
    twofour_sequence& to = given(sequence, "sequence");
    if (count < 1) throw Error(fmt::format("tokens: expected at least one, found {}", count));
    const std::span some(&given(tokens, "tokens"), static_cast<size_t>(count));
    float* const out = &given(logits, "logits");
    to.model.on_device([&] { std::ranges::copy(to.tokens.append(some, all != 0), out); });
  });
}
