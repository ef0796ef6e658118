#include "lib/synth/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>

#include "formats/json.h"
#include "formats/safetensors.h"
#include "kernels/device/check.h"
#include "lib/base/io/file.h"
#include "lib/base/names/natural.h"
#include "lib/base/threads/interrupt.h"

namespace twofour {
namespace {

using enum ParameterKind;

/// The type and shape of a tensor of floats or whole numbers.
std::pair<DType, std::vector<int64_t>> plain_tensor(const SynthModule& m, DType floats) {
  const auto& [name, e, n, k] = m.matrix;
  const DType type = m.is_f32 ? DType::kF32 : floats;
  switch (m.kind) {
    case kNorm:
    case kVector:
      return {type, {n}};
    case kStackVector:
      return {type, {e, n}};
    case kConvolution:
      return {type, {n, 1, k}};
    case kPatches:
      return {type, {n, 3, k, k}};
    case kTwoPatches:
      return {type, {n, 3, 2, k, k}};
    case kGrid:
      return {type, {n, n, k}};
    case kRowStack:
    case kColumnStack:
      return {type, {e, n, k}};
    case kNumbers:
      return {DType::kI64, {n, k}};
    default:
      return {type, {n, k}};
  }
}

}  // namespace

std::vector<SynthTensor> module_tensors(const SynthModule& m, bool first, DType floats) {
  std::vector<SynthTensor> tensors;
  if (m.format == nullptr) {
    auto [type, shape] = plain_tensor(m, floats);
    tensors.push_back(
        {{m.has_weight() ? m.name() + ".weight" : m.name(), type, std::move(shape)}, SynthPart::kCodes});
  } else {
    tensors = quantized_tensors(m.matrix, *m.format);
    if (!first && m.format->shared)
      std::erase_if(tensors, [](const SynthTensor& t) { return t.part == SynthPart::kScales; });
  }
  if (m.has_kv_scale) {
    const char* suffix = m.name().ends_with("k_proj") ? ".k_scale" : ".v_scale";
    tensors.push_back({{m.name() + suffix, DType::kF32, {}}, SynthPart::kKvScale});
  }
  return tensors;
}

SynthFiles::SynthFiles(const SynthModel& model, uint64_t max_shard_size) {
  std::vector<TensorInfo> tensors;
  for_each_module(model, [&](std::span<const SynthModule> modules) {
    for (const SynthModule& m : modules) {
      for (SynthTensor& t : module_tensors(m, &m == modules.data(), model.publication->floats))
        tensors.push_back(std::move(t.info));
    }
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

std::vector<std::pair<std::string, std::string>> synth_auxiliary_files(const SynthModel& model) {
  const SynthPublication& publication = *model.publication;
  const char* token = "<|endoftext|>";

  Json config = model.config;
  Json& text = model.shape->text != nullptr ? config[model.shape->text] : config;
  text["bos_token_id"] = 0;
  text["eos_token_id"] = 0;
  text["torch_dtype"] = publication.floats == DType::kF16 ? "float16" : "bfloat16";
  text["use_cache"] = true;
  const Json context = text["max_position_embeddings"];  // the reference moves with its neighbours
  SynthListing listing{model, {}};
  for_each_module(model, [&](std::span<const SynthModule> modules) {
    listing.modules.insert(listing.modules.end(), modules.begin(), modules.end());
  });
  std::sort(listing.modules.begin(), listing.modules.end(),
            [](const SynthModule& a, const SynthModule& b) { return natural_less(a.name(), b.name()); });
  Json quantization = parse_json("quantization_config", publication.quantization), hf_quant = nullptr;
  if (publication.hf_quant != nullptr) hf_quant = parse_json("hf_quant_config.json", publication.hf_quant);
  if (publication.fill != nullptr) publication.fill(listing, quantization, hf_quant);
  (publication.place != nullptr ? config[publication.place] : config)["quantization_config"] = quantization;

  const Json generation = {{"bos_token_id", 0}, {"eos_token_id", 0}};
  Json tokenizer = parse_json("tokenizer.json", R"({"version": "1.0", "truncation": null, "padding": null,
      "added_tokens": [{"id": 0, "content": "<|endoftext|>", "single_word": false, "lstrip": false,
        "rstrip": false, "normalized": false, "special": true}],
      "normalizer": null, "pre_tokenizer": null, "post_processor": null, "decoder": null,
      "model": {"type": "WordLevel", "vocab": {"<|endoftext|>": 0}, "unk_token": "<|endoftext|>"}})");
  // A tokenizer of one token stands in for that of a toy model only.
  constexpr int64_t kToy = 1024;
  for (int64_t i = 1; model.vocab > kToy && i < model.vocab; ++i)
    tokenizer["model"]["vocab"][fmt::format("t{}", i)] = i;
  const Json tokenizer_config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                 {"bos_token", token},
                                 {"eos_token", token},
                                 {"unk_token", token},
                                 {"model_max_length", context}};

  std::vector<std::pair<std::string, std::string>> files;
  const auto add = [&](const char* name, const Json& json) { files.emplace_back(name, json.dump(2) + '\n'); };
  add("config.json", config);
  add("generation_config.json", generation);
  if (!hf_quant.is_null()) add("hf_quant_config.json", hf_quant);
  add("tokenizer.json", tokenizer);
  add("tokenizer_config.json", tokenizer_config);
  return files;
}

void write_headers(const std::filesystem::path& directory, const SynthFiles& plan, const SynthModel& model) {
  std::vector<AtomicFile> files;
  files.reserve(plan.shards().size());
  for (const SynthShard& shard : plan.shards()) {
    files.emplace_back(directory / shard.name);
    files.back().write(0, shard.header);
    // Unlike resize(), this write does not reserve the space.
    if (shard.data_bytes > 0) files.back().write(shard.header.size() + shard.data_bytes - 1, {"\0", 1});
  }
  constexpr auto kOne = std::bit_cast<std::array<uint8_t, sizeof(float)>>(1.0f);
  for_each_module(model, [&](std::span<const SynthModule> modules) {
    check_interrupt();
    for (const SynthModule& m : modules) {
      for (const SynthTensor& t : module_tensors(m, &m == modules.data(), model.publication->floats)) {
        if (m.format == nullptr && t.part == SynthPart::kCodes) continue;
        if (t.info.dtype != DType::kF32 || t.info.shape.size() > 1) continue;
        const SynthPlace place = plan.find(t.info.name);
        files[place.shard].write(place.offset, kOne);
      }
    }
  });
  for (AtomicFile& file : files) file.commit();
}

}  // namespace twofour
