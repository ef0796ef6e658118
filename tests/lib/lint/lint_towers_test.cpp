#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "formats/json.h"
#include "lib/lint/lint.h"
#include "tests/support/faults/planted.h"
#include "tests/support/faults/spoil.h"
#include "tests/support/scratch.h"

// Settings of towers that read images, and settings that all models of a family share.

namespace lint_towers_test {

using namespace twofour;
using namespace spoil;

namespace {

/// "rule: place: message" of each finding above a note, a line each.
std::string findings_of(Base base, const Change& change, bool headers_only = true) {
  const Scratch scratch;
  std::mt19937 random(1);
  Save save = base_checkpoint(base);
  change(save, random);
  write_planted(save, scratch / "checkpoint");
  Progress progress;
  std::string text;
  for (const LintFinding& f :
       lint(scratch / "checkpoint", {.headers_only = headers_only}, progress).findings) {
    if (f.severity != Severity::kNote)
      text += fmt::format("{}: {}: {}\n", lint_rules()[f.rule].id, f.where(), f.message);
  }
  return text;
}

bool finds(Base base, const Change& change, const std::string& words) {
  const std::string found = findings_of(base, change);
  CAPTURE(found);
  CHECK(found.find(words) != found.npos);
  return found.find(words) != found.npos;
}

/// A file beside the weights.
Change file(std::string name, Json json) {
  return [=](Save& s, std::mt19937&) { s.files[name] = format_json(json); };
}

const std::string kTower = "vision_config.";

/// A tower whose images have 12 x 12 patches, with a table of positions.
Change square_tower(int64_t rows) {
  return all_of(
      {set_key("vision_config", {{"image_size", 168}, {"patch_size", 14}, {"num_hidden_layers", 3}}),
       add_bf16("vision_tower.vision_model.embeddings.position_embedding.weight", {rows, 64})});
}

}  // namespace

TEST_CASE("numbers of a tower's blocks are below its depth") {
  const Change four = set_key("vision_config", {{"depth", 4}});
  for (const char* key : {"fullatt_block_indexes", "deepstack_visual_indexes"}) {
    CHECK(finds(
        Base::kUnknown, all_of({four, set_key(kTower + key, Json::array({1, 4}))}),
        fmt::format("impossible-setting: config.json: vision_config.{}: expected numbers of blocks, 0 to "
                    "3, found 4",
                    key)));
    CHECK(findings_of(Base::kUnknown, all_of({four, set_key(kTower + key, Json::array({1, 3}))})) ==
          findings_of(Base::kUnknown, four));
  }
}

TEST_CASE("a tower has a position for each patch of an image, and perhaps one for the whole") {
  const auto about_size = [](const Change& change) {
    const std::string found = findings_of(Base::kUnknown, change);
    return found.find("image_size") != found.npos || found.find("preprocessor") != found.npos;
  };
  CHECK(!about_size(square_tower(144)));
  CHECK(!about_size(square_tower(145)));
  CHECK(finds(Base::kUnknown, square_tower(196), "config-shape: config.json: vision_config.image_size"));
  const auto processor = [](int64_t height, int64_t width) {
    return file("preprocessor_config.json", {{"size", {{"height", height}, {"width", width}}}});
  };
  CHECK(!about_size(all_of({square_tower(144), processor(168, 168)})));
  CHECK(!about_size(all_of({square_tower(144), processor(168, 336)})));
  CHECK(finds(Base::kUnknown, all_of({square_tower(145), processor(224, 224)}),
              "impossible-setting: preprocessor_config.json: size: expected 168"));
}

TEST_CASE("Gemma 3 pools its patches to squares") {
  const auto pooled = [](int64_t tokens) {
    return all_of(
        {square_tower(144), set_key("model_type", "gemma3"), set_key("mm_tokens_per_image", tokens)});
  };
  for (const int64_t wrong : {int64_t{25}, int64_t{30}})
    CHECK(finds(Base::kUnknown, pooled(wrong), "impossible-setting: config.json: mm_tokens_per_image"));
  CHECK(findings_of(Base::kUnknown, pooled(36)).find("mm_tokens") == std::string::npos);
  CHECK(finds(Base::kUnknown,
              all_of({pooled(36), file("preprocessor_config.json", {{"image_seq_length", 49}})}),
              "impossible-setting: preprocessor_config.json: image_seq_length"));
}

TEST_CASE("Qwen's processor cuts images into the patches of the tower") {
  const Change tower = set_key("vision_config", {{"patch_size", 14}, {"spatial_merge_size", 2}});
  const auto merges = [](int64_t patch, int64_t merge) {
    return file("preprocessor_config.json", {{"patch_size", patch}, {"merge_size", merge}});
  };
  CHECK(finds(Base::kUnknown, all_of({tower, merges(14, 1)}),
              "impossible-setting: preprocessor_config.json: merge_size: expected 2 "
              "(vision_config.spatial_merge_size), found 1"));
  CHECK(findings_of(Base::kUnknown, all_of({tower, merges(14, 2)})).find("preprocessor") ==
        std::string::npos);
}

TEST_CASE("pairs for time, height and width are those of a head") {
  const auto sections = [](const Json& list, bool interleaves) {
    return set_key("rope_scaling",
                   {{"rope_type", "default"}, {"mrope_section", list}, {"mrope_interleaved", interleaves}});
  };
  const Save& base = base_checkpoint(Base::kUnknown);
  const Json config = parse_json("config.json", base.files.at("config.json"));
  const int64_t pairs = config["head_dim"].get<int64_t>() / 2;
  CHECK(findings_of(Base::kUnknown, sections(Json::array({1, 2, pairs - 3}), false)).find("mrope") ==
        std::string::npos);
  CHECK(finds(Base::kUnknown, sections(Json::array({1, 2, pairs}), false), "rope_scaling.mrope_section"));
  CHECK(findings_of(Base::kUnknown, sections(Json::array({1, 2, pairs}), true)).find("mrope") ==
        std::string::npos);
  CHECK(finds(Base::kLlama, sections(Json::array({1, 2, pairs - 4}), true), "rope_scaling.mrope_section"));
}

TEST_CASE("numbers of tokens for images are those of the tokenizer") {
  const auto with = [](int64_t number, const Json& config) {
    return all_of(
        {set_key("video_token_id", number), file("tokenizer_config.json", config),
         file("tokenizer.json", {{"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}}}}},
                                 {"added_tokens", Json::array({{{"id", 2}, {"content", "<|video_pad|>"}},
                                                               {{"id", 3}, {"content", "<|other|>"}}})}})});
  };
  CHECK(finds(Base::kUnknown, with(1, Json::object()),
              "token-ids: config.json: video_token_id: expected an added"));
  CHECK(finds(Base::kUnknown, with(3, {{"video_token", "<|video_pad|>"}}),
              "token-ids: config.json: video_token_id: expected 2"));
  CHECK(findings_of(Base::kUnknown, with(2, {{"video_token", "<|video_pad|>"}})).find("video_token_id") ==
        std::string::npos);
  CHECK(findings_of(Base::kUnknown, with(9, Json::object())).find("video_token_id") == std::string::npos);
}

TEST_CASE("a number for images is not that of another added token, nor beyond all tokens") {
  const auto with = [](uint64_t number) {
    return all_of({set_key("image_token_id", number),
                   file("tokenizer.json",
                        {{"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}}}}},
                         {"added_tokens", Json::array({{{"id", 2}, {"content", "<|image_pad|>"}},
                                                       {{"id", 3}, {"content", "<|vision_end|>"}}})}})});
  };
  const std::string place = "token-ids: config.json: image_token_id: expected an added token";
  CHECK(finds(Base::kUnknown, with(3), place));
  CHECK(finds(Base::kUnknown, with(1000000), place));
  CHECK(findings_of(Base::kUnknown, with(2)).find(place) == std::string::npos);
}

TEST_CASE("a processor scales colors, and is of the model's family") {
  const auto processor = [](Json settings) {
    return all_of({set_key("model_type", "qwen2_5_vl"), set_key("vision_config", {{"in_chans", 3}}),
                   file("preprocessor_config.json", std::move(settings))});
  };
  const auto place = [](const char* key) { return fmt::format("preprocessor_config.json: {}", key); };
  const Json half = Json::array({0.5, 0.5, 0.5});
  const Json sound = {{"image_processor_type", "Qwen2VLImageProcessorFast"},
                      {"image_mean", half},
                      {"image_std", half},
                      {"rescale_factor", 1.0 / 255},
                      {"min_pixels", 3136},
                      {"max_pixels", 12845056}};
  CHECK(findings_of(Base::kUnknown, processor(sound)).find("preprocessor") == std::string::npos);
  const std::pair<const char*, Json> wrong[] = {{"image_mean", Json::array({0.5})},
                                                {"image_mean", Json::array({123.7, 116.3, 103.5})},
                                                {"image_std", Json::array({0.0, 0.5, 0.5})},
                                                {"rescale_factor", 255},
                                                {"min_pixels", 20000000},
                                                {"image_processor_type", "CLIPImageProcessor"}};
  for (const auto& [key, value] : wrong) {
    Json settings = sound;
    settings[key] = value;
    CHECK(finds(Base::kUnknown, processor(settings), place(key)));
  }
}

TEST_CASE("Qwen's merger has its norm and the width of the patches that it joins") {
  const auto tower = [](int64_t columns, bool has_norm) {
    std::vector<Change> changes = {set_key("model_type", "qwen2_5_vl"),
                                   set_key("vision_config", {{"depth", 2},
                                                             {"spatial_merge_size", 2},
                                                             {"out_hidden_size", 64},
                                                             {"in_chans", 3},
                                                             {"patch_size", 14}}),
                                   add_bf16("visual.patch_embed.proj.weight", {32, 3, 2, 14, 14}),
                                   add_bf16("visual.merger.mlp.0.weight", {128, columns}),
                                   add_bf16("visual.merger.mlp.2.weight", {64, 128})};
    for (const char* block : {"0", "1"})
      changes.push_back(add_bf16(fmt::format("visual.blocks.{}.norm1.weight", block), {32}));
    if (has_norm) changes.push_back(add_bf16("visual.merger.ln_q.weight", {32}));
    return all_of(changes);
  };
  CHECK(findings_of(Base::kUnknown, tower(128, true)).find("merger") == std::string::npos);
  CHECK(finds(Base::kUnknown, tower(128, false), "tensor-missing: visual.merger.ln_q"));
  CHECK(finds(Base::kUnknown, tower(32, true), "visual.merger.mlp.0.weight: expected 128 columns"));
}

TEST_CASE("rows may be zero of the pad and of tokens that no template writes") {
  const auto zero = [](int64_t row) {
    return all_of(
        {file("tokenizer.json", {{"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}}}}},
                                 {"added_tokens", Json::array({{{"id", 2}, {"content", "<|turn|>"}},
                                                               {{"id", 3}, {"content", "<|pad|>"}},
                                                               {{"id", 4}, {"content", "<|begin|>"}},
                                                               {{"id", 5}, {"content", "<|other|>"}}})}}),
         file("tokenizer_config.json",
              {{"chat_template", "{% for m in messages %}{{ m.content }}<|turn|>{% endfor %}"},
               {"bos_token", {{"content", "<|begin|>"}}},
               {"pad_token", "<|pad|>"}}),
         map_rows("model.embed_tokens.weight", [=](int64_t r, uint8_t* bytes, size_t n) {
           if (r == row) std::fill_n(bytes, n, 0);
         })});
  };
  for (const int64_t row : {2, 4}) {
    const std::string found = findings_of(Base::kLlama, zero(row), false);
    CAPTURE(found);
    CHECK(found.find("token-row") != found.npos);
  }
  for (const int64_t row : {3, 5})
    CHECK(findings_of(Base::kLlama, zero(row), false).find("token-row") == std::string::npos);
}

TEST_CASE("the template of a model that reads images has a place for them") {
  const auto with = [](const char* text) {
    return all_of(
        {file("tokenizer.json", {{"model", {{"type", "BPE"}, {"vocab", {{"a", 0}, {"b", 1}}}}},
                                 {"added_tokens", Json::array({{{"id", 2}, {"content", "<image>"}}})}}),
         file("tokenizer_config.json", {{"chat_template", text}})});
  };
  CHECK(finds(Base::kQwenRow, with("{% for m in messages %}{{ m.content }}{% endfor %}"), "template-gap"));
  CHECK(findings_of(Base::kQwenRow,
                    with("{% for m in messages %}{% if m.type == 'image' %}[x]{% endif %}{% endfor %}"))
            .find("template-gap") == std::string::npos);
  CHECK(findings_of(Base::kLlama, with("{% for m in messages %}{{ m.content }}{% endfor %}"))
            .find("template-gap") == std::string::npos);
}

TEST_CASE("an activation is that of its family, and an epsilon is small") {
  CHECK(finds(Base::kMoe, set_key("hidden_act", "gelu_new"), "odd-setting: config.json: hidden_act"));
  CHECK(finds(Base::kDeepSeek, set_key("hidden_act", "relu"), "odd-setting: config.json: hidden_act"));
  CHECK(finds(Base::kDeepSeek, all_of({set_key("model_type", "deepseek_v32"), set_key("hidden_act", "relu")}),
              "odd-setting: config.json: hidden_act"));
  CHECK(findings_of(Base::kMoe, set_key("hidden_act", "swish")) == "");
  CHECK(findings_of(Base::kLlama, set_key("hidden_act", "relu")) == "");
  CHECK(finds(Base::kLlama, set_key("rms_norm_eps", 0.002), "odd-setting: config.json: rms_norm_eps"));
  CHECK(findings_of(Base::kLlama, set_key("rms_norm_eps", 1e-3)) == "");
}

TEST_CASE("names of files may count one more than the index where the family's row says what there must be") {
  const Change count_more = [](Save& s, std::mt19937&) {
    std::map<std::string, Tensors> shards;
    const size_t count = s.shards.size() + 1;
    size_t i = 0;
    for (auto& [name, tensors] : s.shards)
      shards[fmt::format("model-{:05}-of-{:05}.safetensors", ++i, count)] = std::move(tensors);
    s.shards = std::move(shards);
  };
  CHECK(findings_of(Base::kLlama, count_more) == "");
  CHECK(finds(Base::kUnknown, count_more, "missing-shard"));
  const Change lose_one = [](Save& s, std::mt19937&) { s.shards.erase(s.shards.begin()); };
  CHECK(findings_of(Base::kLlama, lose_one).find("-missing") != std::string::npos);
}

}  // namespace lint_towers_test
