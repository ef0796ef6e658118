#include <doctest/doctest.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "formats/json.h"
#include "lib/decoder/decoder.h"
#include "tests/support/decoder_golden.h"
#include "tests/support/scratch.h"

namespace twofour {
namespace {

namespace fs = std::filesystem;

/// The folder of golden files: that of the tests, or one that tests/loaders/logits.py --large has made.
fs::path golden_folder() {
  const char* other = std::getenv("TWOFOUR_LOGITS");
  return other != nullptr ? fs::path(other) : fs::path(TWOFOUR_GOLDEN_DIR) / "decoder";
}

/// The largest error at a position over the largest logit there.
double relative_error(std::span<const float> found, std::span<const float> expected) {
  double error = 0, largest = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    error = std::max(error, std::abs(static_cast<double>(found[i]) - static_cast<double>(expected[i])));
    largest = std::max(largest, std::abs(static_cast<double>(expected[i])));
  }
  return std::isfinite(error) ? error / largest : INFINITY;
}

/// Of any position, of those that have expected logits: the last ones.
double worst_error(const DecoderGolden& golden, const std::vector<float>& logits) {
  const auto vocabulary = static_cast<size_t>(golden.vocabulary);
  const std::span<const float> last = std::span(logits).last(golden.logits.size());
  double worst = 0;
  for (size_t i = 0; i < golden.logits.size(); i += vocabulary) {
    worst = std::max(
        worst, relative_error(last.subspan(i, vocabulary), std::span(golden.logits).subspan(i, vocabulary)));
  }
  return worst;
}

TEST_CASE("logits are those of transformers, for a prefill and for tokens one by one") {
  for (const std::string& name : decoder_golden_names(golden_folder())) {
    CAPTURE(name);
    const Scratch scratch;
    const DecoderGolden golden = read_decoder_golden(golden_folder(), name);
    write_decoder_checkpoint(golden, scratch / "model");
    const Decoder decoder = Decoder::open(scratch / "model");

    DecoderSequence sequence(decoder);
    const std::span<const int32_t> tokens(golden.tokens);
    std::vector<float> logits = sequence.append(tokens.first(golden.prefill), true);
    for (size_t i = golden.prefill; i < tokens.size(); ++i) {
      const std::vector<float> next = sequence.append(tokens.subspan(i, 1));
      logits.insert(logits.end(), next.begin(), next.end());
    }
    // Both sides add float32 in other orders; the bound is the one of the issue.
    const double error = worst_error(golden, logits);
    MESSAGE(name, ": ", error);
    CHECK(error <= 2e-4);

    DecoderSequence whole(decoder);
    CHECK(worst_error(golden, whole.append(tokens, true)) <= 2e-4);
  }
}

}  // namespace
}  // namespace twofour
