#include <algorithm>
#include <span>
#include <string>

#include "formats/error.h"
#include "lib/decoder/decoder.h"
#include "lib/runtime/c_guard.h"
#include "lib/runtime/twofour.h"

using namespace twofour;

struct twofour_model {
  Decoder decoder;
};

struct twofour_sequence {
  explicit twofour_sequence(const twofour_model& from) : model(from), tokens(from.decoder) {}
  const twofour_model& model;
  DecoderSequence tokens;
};

int twofour_open_model(const char* path, twofour_model** model) {
  return guarded([&] {
    given(model, "model") = nullptr;
    *model = new twofour_model{Decoder::open(&given(path, "path"))};
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
    *sequence = new twofour_sequence(given(model, "model"));
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
    std::ranges::copy(to.tokens.append(some, all != 0), out);
  });
}
