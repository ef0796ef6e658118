#include <doctest/doctest.h>
#include <omp.h>

#include <cmath>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <sstream>
#include <string>
#include <vector>

#include "formats/error.h"
#include "lib/run/gradients/gradients.h"
#include "tests/support/message.h"
#include "tests/support/models/decoder_golden.h"
#include "tests/support/scratch.h"

namespace twofour {
namespace {

/// The folder of tests/golden/gradients, or one that tests/loaders/gradients.py --large has made.
std::filesystem::path gradient_folder() {
  const char* other = std::getenv("TWOFOUR_GRADIENTS");
  return other != nullptr ? std::filesystem::path(other)
                          : std::filesystem::path(TWOFOUR_GOLDEN_DIR) / "gradients";
}

/// The gradients of torch for a model: a case of tests/loaders/gradients.py.
struct TorchGradients {
  size_t windows, length;
  double loss;
  std::vector<float> gradient;            ///< [tokens, H]
  std::map<std::string, double> squares;  ///< by LAYER.KIND of a product
};

TorchGradients read_torch_gradients(const std::string& name) {
  std::ostringstream text;
  text << std::ifstream(gradient_folder() / (name + ".json")).rdbuf();
  const Json json = parse_json(name, text.str());
  const Checkpoint file = Checkpoint::open(gradient_folder() / (name + ".safetensors"));
  TorchGradients golden{json["windows"].get<size_t>(),
                        json["length"].get<size_t>(),
                        json["loss"].get<double>(),
                        read_whole<float>(file, "gradient"),
                        {}};
  const std::vector<double> squares = read_whole<double>(file, "squares");
  for (size_t i = 0; i < squares.size(); ++i)
    golden.squares[json["names"][i].get<std::string>()] = squares[i];
  return golden;
}

/// Adds up squared gradients under torch's names of products.
struct SquareSums : GradientWatcher {
  void see_gradient(size_t group, std::span<const float>, std::span<const int64_t> tokens,
                    std::span<const OutputGradient> outputs) override {
    double sum = 0;
    size_t count = 0;
    for (const OutputGradient& o : outputs) {
      for (const float v : o.dy) sum += static_cast<double>(v) * static_cast<double>(v);
      count += o.dy.size();
    }
    const size_t rows = tokens.empty() ? all : tokens.size();
    squares[name_of(group, outputs)] += sum / (static_cast<double>(count) / static_cast<double>(rows));
  }
  std::string name_of(size_t group, std::span<const OutputGradient> outputs) const {
    if (group == kHead) return "head";
    const std::string& linear = outputs.front().linear;
    std::smatch found;
    const std::regex expert(".*layers\\.(\\d+)\\..*experts\\.(\\d+)\\.(\\w+)"),
        plain(".*layers\\.(\\d+)\\.(.*)");
    if (std::regex_match(linear, found, expert)) {
      const bool is_down = outputs.size() == 1;
      return found[1].str() + ".mlp.experts." + (is_down ? "down_proj." : "gate_up_proj.") + found[2].str();
    }
    REQUIRE(std::regex_match(linear, found, plain));
    return found[1].str() + "." + std::regex_replace(found[2].str(), std::regex("block_sparse_moe"), "mlp");
  }
  size_t all = 0;
  std::map<std::string, double> squares;
};

struct BackwardRun {
  double loss = 0;
  std::vector<float> gradient;
  std::map<std::string, double> squares;
};

BackwardRun run_backward_of(const Decoder& model, const std::vector<int32_t>& tokens, size_t length) {
  std::vector<SequencePart> parts;
  for (size_t row = 0; row < tokens.size(); row += length)
    parts.push_back({static_cast<int64_t>(length), 0, nullptr, tokens.data() + row});
  std::vector<std::vector<float>> hidden(1);
  hidden[0].resize(tokens.size() * static_cast<size_t>(model.shape().hidden));
  model.embed(tokens, hidden[0]);
  for (int64_t layer = 0; layer < model.shape().layers; ++layer) {
    hidden.push_back(hidden.back());
    model.run_layer(layer, parts, hidden.back());
  }
  SquareSums sums;
  sums.all = tokens.size();
  BackwardRun made;
  made.gradient.resize(hidden[0].size());
  made.loss = backward_head(model, parts, hidden.back(), made.gradient, &sums);
  for (int64_t layer = model.shape().layers - 1; layer >= 0; --layer)
    backward_layer(model, layer, parts, hidden[static_cast<size_t>(layer)], made.gradient, &sums);
  made.squares = sums.squares;
  return made;
}

std::vector<int32_t> gradient_tokens(const TorchGradients& golden, int64_t vocabulary) {
  std::vector<int32_t> tokens;
  for (size_t i = 0; i < golden.windows * golden.length; ++i) {
    const auto at = static_cast<int64_t>(i);
    tokens.push_back(static_cast<int32_t>((at * at * 7 % 31 + at % 13 + 3) % vocabulary));
  }
  return tokens;
}

TEST_CASE("gradients are those of torch, of every product and in what enters the first layer") {
  for (const std::string& name : decoder_golden_names(gradient_folder())) {
    CAPTURE(name);
    const Scratch scratch;
    const DecoderGolden model = read_decoder_golden(golden_folder(), name);
    const TorchGradients golden = read_torch_gradients(name);
    write_decoder_checkpoint(model, scratch / "model");
    const Decoder decoder = Decoder::open(scratch / "model");
    const BackwardRun made =
        run_backward_of(decoder, gradient_tokens(golden, model.vocabulary), golden.length);
    CHECK(made.loss == doctest::Approx(golden.loss).epsilon(1e-5));
    double off = 0, all = 0;
    REQUIRE(made.gradient.size() == golden.gradient.size());
    for (size_t i = 0; i < golden.gradient.size(); ++i) {
      off += std::pow(static_cast<double>(made.gradient[i]) - static_cast<double>(golden.gradient[i]), 2);
      all += std::pow(static_cast<double>(golden.gradient[i]), 2);
    }
    const double error = std::sqrt(off / all);
    MESSAGE(name, ": ", error);
    CHECK(error <= 1e-4);
    CHECK(made.squares.size() == golden.squares.size());
    for (const auto& [product, expected] : golden.squares) {
      CAPTURE(product);
      const auto found = made.squares.find(product);
      REQUIRE(found != made.squares.end());
      CHECK(std::sqrt(found->second) == doctest::Approx(std::sqrt(expected)).epsilon(1e-4));
    }
  }
}

TEST_CASE("gradients are the same for any number of threads") {
  for (const char* name : {"qwen2_moe", "deepseek_v3", "gemma3"}) {
    CAPTURE(name);
    const Scratch scratch;
    const DecoderGolden model = read_decoder_golden(golden_folder(), name);
    write_decoder_checkpoint(model, scratch / "model");
    const Decoder decoder = Decoder::open(scratch / "model");
    const std::vector<int32_t> tokens(model.tokens.begin(), model.tokens.begin() + 36);
    const int before = omp_get_max_threads();
    omp_set_num_threads(1);
    const BackwardRun one = run_backward_of(decoder, tokens, 12);
    omp_set_num_threads(4);
    const BackwardRun four = run_backward_of(decoder, tokens, 12);
    omp_set_num_threads(before);
    CHECK(one.gradient == four.gradient);
    CHECK(one.squares == four.squares);
    CHECK(one.loss == four.loss);
  }
}

TEST_CASE("blocks without a backward pass are refused by name") {
  for (const char* name : {"qwen3_next", "qwen3_5-vision", "deepseek_v4"}) {
    CAPTURE(name);
    const Scratch scratch;
    const DecoderGolden golden = read_decoder_golden(golden_folder(), name);
    write_decoder_checkpoint(golden, scratch / "model");
    const std::string message = message_of([&] { check_gradients(Decoder::open(scratch / "model")); });
    contains(message, "config.json: model_type: expected a family whose blocks all have a backward pass");
    contains(message, Decoder::open(scratch / "model").shape().family);
    contains(message, name == std::string("deepseek_v4") ? "attention to compressed entries has none"
                                                         : "linear attention has none");
  }
}

}  // namespace
}  // namespace twofour
