#include <doctest/doctest.h>
#include <omp.h>

#include "lib/run/decoder/decoder.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/scratch.h"

namespace twofour {
namespace {

TEST_CASE("logits are those of transformers, for a prefill and for tokens one by one") {
  for (const std::string& name : decoder_golden_names(golden_folder())) {
    CAPTURE(name);
    const Scratch scratch;
    const DecoderGolden golden = read_decoder_golden(golden_folder(), name);
    write_decoder_checkpoint(golden, scratch / "model");
    const Decoder decoder = Decoder::open(scratch / "model");

    // Both sides add float32 in other orders; the bound is the one of the issue.
    const double error = worst_error(golden, run_golden(decoder, golden));
    MESSAGE(name, ": ", error);
    CHECK(error <= 2e-4);

    DecoderSequence whole(decoder);
    CHECK(worst_error(golden, whole.append(golden.tokens, true)) <= 2e-4);
  }
}

}  // namespace
}  // namespace twofour
