#pragma once
#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/checkpoint_builder.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/models/letter_tokenizer.h"
#include "tests/support/scratch.h"

namespace twofour {

/// A golden model as a directory "model" with a tokenizer, beside files of tokens.
struct DecoderFiles {
  explicit DecoderFiles(const std::string& name)
      : golden(read_decoder_golden(std::filesystem::path(TWOFOUR_GOLDEN_DIR) / "decoder", name)) {
    write_decoder_checkpoint(golden, scratch / "model");
    std::ofstream(scratch / "model" / "tokenizer.json") << letter_tokenizer();
  }
  /// Writes tokens as equally long windows, rows of `tokens`.
  void write_tokens(const std::string& name, const std::vector<int32_t>& tokens, int64_t windows) const {
    TensorData t{"tokens", DType::kI32, {windows, static_cast<int64_t>(tokens.size()) / windows}, {}};
    t.bytes.resize(tokens.size() * sizeof(int32_t));
    std::memcpy(t.bytes.data(), tokens.data(), t.bytes.size());
    write_safetensors(scratch / name, {t});
  }
  /// Writes four windows of 256 tokens, of a small vocabulary.
  void write_calibration(const std::string& name) const {
    std::vector<int32_t> tokens;
    for (int i = 0; i < 4 * 256; ++i) tokens.push_back((i * i + i / 5) % 48);
    write_tokens(name, tokens, 4);
  }
  std::string path(const std::string& name) const { return (scratch / name).string(); }

  Scratch scratch;
  DecoderGolden golden;
};

}  // namespace twofour
