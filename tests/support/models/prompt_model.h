#pragma once
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "formats/json.h"
#include "lib/base/io/file.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/models/letter_tokenizer.h"
#include "tests/support/scratch.h"

namespace twofour {

/// A golden model in floats with a tokenizer.
struct PromptModel {
  explicit PromptModel(const std::string& name = "qwen3_moe") {
    write_decoder_checkpoint(read_decoder_golden(std::filesystem::path(TWOFOUR_GOLDEN_DIR) / "decoder", name),
                             scratch / "model");
    std::ofstream(scratch / "model" / "tokenizer.json") << letter_tokenizer();
    std::string text;
    for (int i = 0; i < 400; ++i) text += static_cast<char>('A' + (i * 7) % 26);
    std::ofstream(scratch / "text") << text;
  }
  std::string at(const std::string& name) const { return (scratch / name).string(); }
  /// Changes config.json.
  void configure(const std::function<void(Json&)>& change) const {
    Json config = parse_json("config", read_text(scratch / "model" / "config.json"));
    change(config);
    std::ofstream(scratch / "model" / "config.json") << config.dump();
  }
  Scratch scratch;
};

}  // namespace twofour
