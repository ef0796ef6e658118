#include "lib/synth/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "formats/atom.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "kernels/device/check.h"
#include "lib/dialects/output_dialect.h"
#include "lib/io/file.h"
#include "lib/names/config_pattern.h"
#include "lib/names/natural.h"
#include "lib/threads/interrupt.h"

namespace twofour {
namespace {

/// The tensors of one module, as the dialect stores it.
void append_tensors(const SynthModule& m, const Nvfp4Dialect& dialect, std::vector<TensorInfo>& tensors) {
  const auto add = [&](std::string name, DType dtype, std::vector<int64_t> shape) {
    tensors.push_back({std::move(name), dtype, std::move(shape)});
  };
  if (m.is_nvfp4()) {
    // ModelOpt writes scalars without dimensions, compressed-tensors with one.
    const std::vector<int64_t> scalar(dialect.divides ? 1 : 0, 1);
    add(m.name + dialect.codes, DType::kU8, {m.n, m.k / 2});
    add(m.name + dialect.block_scale, DType::kF8E4M3, {m.n, m.k / kGroup});
    add(m.name + dialect.global_scale, DType::kF32, scalar);
    add(m.name + dialect.input_scale, DType::kF32, scalar);
  } else if (m.role == SynthRole::kVector) {
    add(m.name, DType::kBF16, {m.n});
  } else if (m.role == SynthRole::kConvolution) {
    add(m.name + ".weight", DType::kBF16, {m.n, 1, m.k});
  } else {
    add(m.name + ".weight", DType::kBF16, {m.n, m.k});
  }
}

}  // namespace

SynthFiles::SynthFiles(const SynthModel& model, const Nvfp4Dialect& dialect, uint64_t max_shard_size) {
  std::vector<TensorInfo> tensors;
  for_each_module(model, [&](std::span<const SynthModule> modules) {
    for (const SynthModule& m : modules) append_tensors(m, dialect, tensors);
  });
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorInfo& a, const TensorInfo& b) { return natural_less(a.name, b.name); });

  tensors_.reserve(tensors.size());
  std::vector<TensorInfo> shard;
  uint64_t filled = 0;
  for (TensorInfo& t : tensors) {
    const uint64_t bytes = tensor_bytes(t.name, t.dtype, t.shape);
    if (!shard.empty() && (filled > max_shard_size || bytes > max_shard_size - filled)) {
      add_shard(std::move(shard));
      shard.clear();
      filled = 0;
    }
    filled += bytes;
    shard.push_back(std::move(t));
  }
  add_shard(std::move(shard));

  for (size_t i = 0; i < shards_.size(); ++i) {
    shards_[i].name = fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, shards_.size());
  }
  std::sort(tensors_.begin(), tensors_.end(),
            [](const Tensor& a, const Tensor& b) { return a.name < b.name; });
}

void SynthFiles::add_shard(std::vector<TensorInfo> tensors) {
  const uint64_t bytes = assign_offsets(tensors);
  shards_.push_back({"", format_safetensors_header(tensors, {{"format", "pt"}}), bytes});
  const auto shard = static_cast<uint32_t>(shards_.size() - 1);
  const uint64_t data = shards_.back().header.size();
  for (TensorInfo& t : tensors) tensors_.push_back({std::move(t.name), {shard, data + t.begin}});
  data_bytes_ += bytes;
}

SynthPlace SynthFiles::find(std::string_view tensor) const {
  const auto at = std::lower_bound(tensors_.begin(), tensors_.end(), tensor,
                                   [](const Tensor& t, std::string_view name) { return t.name < name; });
  check(at != tensors_.end() && at->name == tensor, "a tensor of the plan");
  return at->place;
}

std::string SynthFiles::index() const {
  std::string json = fmt::format(
      "{{\n  \"metadata\": {{\n    \"total_size\": {}\n  }},\n  \"weight_map\": {{\n", data_bytes_);
  for (const Tensor& t : tensors_) {
    json += fmt::format("    {}: {}{}\n", json_quote(t.name), json_quote(shards_[t.place.shard].name),
                        &t == &tensors_.back() ? "" : ",");
  }
  return json + "  }\n}\n";
}

std::vector<std::pair<std::string, std::string>> synth_auxiliary_files(const SynthModel& model,
                                                                       const Nvfp4Dialect& dialect) {
  const std::vector<std::string> unquantized = unquantized_modules(model);
  const OutputDialect& written = output_dialect(dialect.name, true);
  const char* token = "<|endoftext|>";

  Json config = parse_json("config.json", model.shape->config);
  config["num_hidden_layers"] = model.layers;
  if (model.shape->experts_key != nullptr) {
    config[model.shape->experts_key] = model.experts;
    config["num_experts_per_tok"] = model.shape->top_k;
  }
  config["vocab_size"] = model.vocab;
  config["bos_token_id"] = 0;
  config["eos_token_id"] = 0;
  config["torch_dtype"] = "bfloat16";
  config["use_cache"] = true;
  const Scheme scheme{.format = WeightFormat::kNvfp4, .has_input_scale = true};
  const ConfigEntries entries = written.config({.unquantized = written.patterns(unquantized)}, scheme);
  config["quantization_config"] = entries.quantization_config;

  const Json generation = {{"bos_token_id", 0}, {"eos_token_id", 0}};
  const Json added = {{"id", 0},         {"content", token},    {"single_word", false}, {"lstrip", false},
                      {"rstrip", false}, {"normalized", false}, {"special", true}};
  const Json tokenizer = {{"version", "1.0"},
                          {"truncation", nullptr},
                          {"padding", nullptr},
                          {"added_tokens", Json::array({added})},
                          {"normalizer", nullptr},
                          {"pre_tokenizer", nullptr},
                          {"post_processor", nullptr},
                          {"decoder", nullptr},
                          {"model", {{"type", "WordLevel"}, {"vocab", {{token, 0}}}, {"unk_token", token}}}};
  const Json tokenizer_config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                 {"bos_token", token},
                                 {"eos_token", token},
                                 {"unk_token", token},
                                 {"model_max_length", config["max_position_embeddings"]}};

  std::vector<std::pair<std::string, std::string>> files;
  const auto add = [&](const char* name, const Json& json) { files.emplace_back(name, json.dump(2) + '\n'); };
  add("config.json", config);
  add("generation_config.json", generation);
  if (!entries.hf_quant_config.is_null()) add("hf_quant_config.json", entries.hf_quant_config);
  add("tokenizer.json", tokenizer);
  add("tokenizer_config.json", tokenizer_config);
  return files;
}

void write_headers(const std::filesystem::path& directory, const SynthFiles& plan, const SynthModel& model,
                   const Nvfp4Dialect& dialect) {
  std::vector<AtomicFile> files;
  files.reserve(plan.shards().size());
  for (const SynthShard& shard : plan.shards()) {
    files.emplace_back(directory / shard.name);
    files.back().write(0, shard.header);
    // Not resize(), which would reserve the space.
    if (shard.data_bytes > 0) files.back().write(shard.header.size() + shard.data_bytes - 1, {"\0", 1});
  }
  constexpr auto kOne = std::bit_cast<std::array<uint8_t, sizeof(float)>>(1.0f);
  for_each_module(model, [&](std::span<const SynthModule> modules) {
    check_interrupt();
    for (const SynthModule& m : modules) {
      if (!m.is_nvfp4()) continue;
      for (const char* scale : {dialect.global_scale, dialect.input_scale}) {
        const SynthPlace place = plan.find(m.name + scale);
        files[place.shard].write(place.offset, kOne);
      }
    }
  });
  for (AtomicFile& file : files) file.commit();
}

}  // namespace twofour
