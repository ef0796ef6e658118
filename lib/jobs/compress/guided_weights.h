#pragma once
#include <cstdint>
#include <filesystem>
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "lib/run/decoder/decoder.h"

namespace twofour {

/// Names in a work folder: the weights, and the streams from which they are computed.
inline constexpr const char* kGuidedWeights = "token-weights.safetensors";
inline constexpr const char* kBackwardStreams = "streams-backward";

/// The tokens of windows, and the linears for which each token gets a weight.
struct GuidedTokens {
  const std::vector<std::vector<int32_t>>& windows;
  const std::set<std::string>& linears;
};

/// Writes the file that TokenWeights reads. A weight is the root of the mean over a linear's outputs of the
/// squared gradient of the loss, divided by its mean over the tokens that reach the linear; it is 0 for
/// others. Gate and up of one expert have the weights of both their outputs. `streams` is the path of a file
/// of BackwardPass::bytes_of_file() bytes, which is gone afterwards. Calls `done` with the share of the work
/// that is done. The output appears completely or not at all.
void write_guided_weights(const Decoder& model, const GuidedTokens& tokens,
                          const std::filesystem::path& streams, const std::filesystem::path& out,
                          const std::function<void(double share)>& done);

/// The size of that file, and the memory for writing it, in bytes.
uint64_t guided_weights_bytes(const GuidedTokens& tokens);
uint64_t guided_weights_memory(const Decoder& model, const GuidedTokens& tokens);

}  // namespace twofour
