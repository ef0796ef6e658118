#pragma once
#include <cstddef>
#include <cstdint>

#include "kernels/device/stream.h"

/// Several residual streams in place of one, on the device in float32. residual_streams.h defines them.
/// Functions only put work on the caller's stream, and do not wait. They throw Error with CUDA's message.

namespace twofour::cuda {

/// The largest number of streams.
inline constexpr int kMostStreams = 64;

/// The weights of a mixer, like cpu::StreamMixer, and what it is for.
struct StreamMixer {
  int64_t streams = 0, hidden = 0;
  const float* weight = nullptr;  ///< [rows, streams * hidden]
  const float* base = nullptr;    ///< [rows]
  const float* scale = nullptr;   ///< [3]; [1] for the head
  int64_t iterations = 0;
  double epsilon = 0, norm_epsilon = 0;
  bool is_head = false;  ///< the mixer only reads, and has `streams` rows

  int64_t rows() const { return is_head ? streams : streams * (streams + 2); }
  /// Floats of a token's mix: the weights by which its streams get an output, then those by which they mix.
  int64_t mix() const { return streams * (streams + 1); }
};

/// Takes the mixing weights of `m` tokens from their streams `x` [m, streams, hidden]. Writes the input of
/// half a layer or of the head to `out` [m, hidden], and the mix to `mix` [m, mixer.mix()], which a head
/// lacks. `workspace` has mix_streams_workspace() bytes.
size_t mix_streams_workspace(const StreamMixer& mixer, int64_t m);
void mix_streams(const StreamMixer& mixer, const float* x, int64_t m, float* out, float* mix, void* workspace,
                 Stream stream);

/// Mixes the streams `x` [m, streams, hidden] of tokens with each other and adds the output `y` [m, hidden]
/// of half a layer to each of them.
void write_streams(const StreamMixer& mixer, const float* mix, const float* y, int64_t m, float* x,
                   Stream stream);

/// Sets all streams `x` [m, streams, hidden] of tokens to `from` [m, hidden].
void begin_streams(const float* from, int64_t m, int64_t streams, int64_t hidden, float* x, Stream stream);

}  // namespace twofour::cuda
