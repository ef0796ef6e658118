#pragma once
#include <doctest/doctest.h>

#include <cstdint>
#include <span>
#include <vector>

#include "lib/run/decoder/decoder.h"

namespace twofour {

/// The logits of all tokens of a text that a sequence gets in pieces of these lengths.
inline std::vector<float> logits_in_pieces(const Decoder& decoder, std::span<const int32_t> tokens,
                                           const std::vector<size_t>& pieces) {
  DecoderSequence sequence(decoder);
  std::vector<float> logits;
  size_t at = 0;
  for (const size_t count : pieces) {
    const auto some = sequence.append(tokens.subspan(at, count), true);
    logits.insert(logits.end(), some.begin(), some.end());
    at += count;
  }
  REQUIRE(at == tokens.size());
  return logits;
}

}  // namespace twofour
