#include "tests/support/faults/large_model.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
#include <fstream>
#include <map>
#include <memory>
#include <stdexcept>

#include "formats/half.h"
#include "formats/json.h"
#include "tests/support/checkpoint_builder.h"
#include "tests/support/conversion.h"
#include "tests/support/scratch.h"

namespace twofour {
namespace {

constexpr int64_t kHidden = 1024, kInner = 2048, kTokens = 1024, kLayers = 4;

constexpr const char* kConfig = R"({"architectures": ["LlamaForCausalLM"], "model_type": "llama",
  "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 4, "num_attention_heads": 8,
  "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 1024, "tie_word_embeddings": false,
  "hidden_act": "silu", "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "rope_theta": 10000.0,
  "torch_dtype": "bfloat16"})";

using Sizes = std::vector<float>;

/// `outputs` and `inputs` are the sizes of rows and of columns; empty: 1.
void add_weights(Tensors& to, const std::string& name, int64_t rows, int64_t columns, float size,
                 std::mt19937_64& random, const Sizes& outputs = {}, const Sizes& inputs = {}) {
  std::normal_distribution<float> normal;
  std::vector<uint8_t> bytes(static_cast<size_t>(2 * rows * columns));
  for (int64_t r = 0; r < rows; ++r) {
    const float row =
        size * std::exp(0.25f * normal(random)) * (outputs.empty() ? 1 : outputs[static_cast<size_t>(r)]);
    for (int64_t k = 0; k < columns; ++k) {
      const float x = normal(random);
      const uint16_t half = bf16_from_float(row * x * (0.8f + 0.1f * x * x) *
                                            (inputs.empty() ? 1 : inputs[static_cast<size_t>(k)]));
      std::memcpy(&bytes[static_cast<size_t>(2 * (r * columns + k))], &half, 2);
    }
  }
  to.push_back({name, DType::kBF16, {rows, columns}, std::move(bytes)});
}

void add_norm(Tensors& to, const std::string& name, std::mt19937_64& random) {
  std::normal_distribution<float> normal(1, 0.2f);
  std::vector<uint8_t> bytes;
  for (int64_t i = 0; i < kHidden; ++i) {
    const uint16_t half = bf16_from_float(std::fabs(normal(random)));
    bytes.push_back(static_cast<uint8_t>(half & 0xFF));
    bytes.push_back(static_cast<uint8_t>(half >> 8));
  }
  to.push_back({name, DType::kBF16, {kHidden}, std::move(bytes)});
}

Tensors model(bool has_channels) {
  std::mt19937_64 random(7);
  Sizes stream;
  if (has_channels) {
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < kHidden; ++i) stream.push_back(std::exp(0.4f * normal(random)));
  }
  Tensors t;
  add_weights(t, "model.embed_tokens.weight", kTokens, kHidden, 0.02f, random);
  add_weights(t, "lm_head.weight", kTokens, kHidden, 0.02f, random);
  add_norm(t, "model.norm.weight", random);
  for (int64_t layer = 0; layer < kLayers; ++layer) {
    const std::string at = fmt::format("model.layers.{}.", layer);
    for (const char* norm : {"input_layernorm", "post_attention_layernorm"})
      add_norm(t, at + norm + ".weight", random);
    for (const char* name : {"q", "k", "v"})
      add_weights(t, fmt::format("{}self_attn.{}_proj.weight", at, name), kHidden, kHidden, 0.02f, random, {},
                  stream);
    add_weights(t, at + "self_attn.o_proj.weight", kHidden, kHidden, 0.02f, random, stream);
    for (const char* name : {"gate", "up"})
      add_weights(t, fmt::format("{}mlp.{}_proj.weight", at, name), kInner, kHidden, 0.02f, random, {},
                  stream);
    add_weights(t, at + "mlp.down_proj.weight", kHidden, kInner, 0.02f, random, stream);
  }
  return t;
}

const std::filesystem::path& root() {
  static const Scratch scratch;
  return scratch.path;
}

bool fits(const std::string& name, const std::string& pattern) {
  const size_t star = pattern.find('*');
  if (star == std::string::npos) return name == pattern;
  const std::string end = pattern.substr(star + 1);
  return name.size() + 1 >= pattern.size() && name.starts_with(pattern.substr(0, star)) &&
         name.ends_with(end);
}

/// Bytes of a file, changed until the object goes.
class Changed {
 public:
  Changed(const std::string& file, uint64_t offset, uint64_t count) : file_(file), offset_(offset) {
    old_.resize(count);
    move([&](int fd) { return ::pread(fd, old_.data(), count, static_cast<off_t>(offset_)); });
  }
  Changed(Changed&&) = default;
  Changed(const Changed&) = delete;
  ~Changed() {
    if (!old_.empty()) write(old_);
  }
  std::vector<uint8_t> bytes() const { return old_; }
  void write(const std::vector<uint8_t>& bytes) const {
    move([&](int fd) { return ::pwrite(fd, bytes.data(), bytes.size(), static_cast<off_t>(offset_)); });
  }

 private:
  template <class F>
  void move(const F& f) const {
    const int fd = ::open(file_.c_str(), O_RDWR);
    const bool done = fd >= 0 && f(fd) == static_cast<ssize_t>(old_.size());
    if (fd >= 0) ::close(fd);
    if (!done) throw std::runtime_error(file_);
  }
  std::string file_;
  uint64_t offset_;
  std::vector<uint8_t> old_;
};

/// The header of a file, and where its data begins.
std::pair<Json, uint64_t> read_header(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  uint64_t size = 0;
  in.read(reinterpret_cast<char*>(&size), sizeof(size));
  std::string text(size, ' ');
  in.read(text.data(), static_cast<std::streamsize>(size));
  return {Json::parse(text), sizeof(size) + size};
}

}  // namespace

LargeModel::LargeModel(const std::string& format) : directory_(root() / format) {
  constexpr std::string_view kChannels = "channels ";
  const bool has_channels = format.starts_with(kChannels);
  const std::string before(has_channels ? kChannels : ""), to = format.substr(before.size());
  if (to == "bf16") {
    write_checkpoint(directory_, {model(has_channels)}, kConfig);
    return;
  }
  OneRule rule;
  rule.to = to == "nvfp4" ? "quantize" : to;
  if (to == "mxfp6") rule.dialect = "compressed-tensors";
  convert(get(before + "bf16").directory_, directory_, rule);
  std::filesystem::remove(directory_ + "/twofour.json");  // its hashes would find everything
}

const LargeModel& LargeModel::get(const std::string& format) {
  static std::map<std::string, std::unique_ptr<LargeModel>> models;
  std::unique_ptr<LargeModel>& model = models[format];
  if (!model) model.reset(new LargeModel(format));
  return *model;
}

namespace {

/// Changes the tensors of a directory. `changed` restores them.
void change_tensors(const std::filesystem::path& directory,
                    const std::vector<std::pair<std::string, LargeModel::Edit>>& edits,
                    std::deque<Changed>& changed) {
  std::mt19937 random(3);
  for (const auto& [pattern, edit] : edits) {
    bool found = false;
    for (const auto& entry : std::filesystem::directory_iterator(directory)) {
      if (entry.path().extension() != ".safetensors") continue;
      const auto [header, begin] = read_header(entry.path());
      for (const auto& [name, t] : header.items()) {
        if (name == "__metadata__" || !fits(name, pattern)) continue;
        found = true;
        const uint64_t first = t["data_offsets"][0].get<uint64_t>(),
                       last = t["data_offsets"][1].get<uint64_t>();
        Changed& one = changed.emplace_back(entry.path(), begin + first, last - first);
        std::vector<uint8_t> bytes = one.bytes();
        const size_t rows = t["shape"].empty() ? 1 : t["shape"][0].get<size_t>();
        edit(bytes, bytes.size() / rows, random);
        one.write(bytes);
      }
    }
    if (!found) throw std::runtime_error(pattern);
  }
}

}  // namespace

LintReport LargeModel::lint_changed(const std::vector<std::pair<std::string, Edit>>& edits) const {
  std::deque<Changed> changed;  // restored in reverse
  change_tensors(directory_, edits, changed);
  Progress progress;
  return lint(directory_, {}, progress);
}

void LargeModel::write_changed(const std::filesystem::path& directory,
                               const std::vector<std::pair<std::string, Edit>>& edits) const {
  std::deque<Changed> changed;
  change_tensors(directory_, edits, changed);
  std::filesystem::copy(directory_, directory, std::filesystem::copy_options::recursive);
}

std::string lines_of(const LintReport& report) {
  std::string lines;
  for (const LintFinding& f : report.findings) {
    if (f.severity != Severity::kNote)
      lines += fmt::format("{}: {}: {}\n", lint_rules()[f.rule].id, f.name, f.message);
  }
  return lines;
}

}  // namespace twofour
