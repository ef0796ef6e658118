#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "formats/json/access.h"
#include "lib/lint/config/checks.h"

// Settings of towers that read images, against each other, against the table of positions, and against those
// of the processor that cuts images into patches. Source: transformers 5.17, modeling_gemma3.py,
// modeling_siglip.py, modeling_clip.py, modeling_qwen2_5_vl.py, image_processing_qwen2_vl.py.

namespace twofour {
namespace {

class VisionSettings {
 public:
  VisionSettings(const LintInput& s, LintReporter& reporter)
      : s_(s),
        reporter_(reporter),
        tower_(member(s.config, "vision_config")),
        processor_(read_lint_config(s.path, kFile, unreported_)) {}

  void run() {
    check_blocks();
    check_positions();
    check_pooling();
    check_processor();
    if (processor_.is_object()) {
      check_numbers();
      check_class();
    }
  }

 private:
  static constexpr const char* kFile = "preprocessor_config.json";

  template <class... Args>
  void impossible(const char* file, std::string key, fmt::format_string<Args...> text, Args&&... args) {
    reporter_.add("impossible-setting", {file, std::move(key)}, text, std::forward<Args>(args)...);
  }
  std::optional<int64_t> size(const Json& config, const char* key) const {
    const auto number = integer_of(config, key);
    return number && *number > 0 ? number : std::nullopt;
  }

  /// Checks lists of numbers of blocks.
  void check_blocks() {
    auto depth = size(tower_, "depth");
    if (!depth) depth = size(tower_, "num_hidden_layers");
    if (!depth) return;
    for (const char* key :
         {"fullatt_block_indexes", "deepstack_visual_indexes", "intermediate_layers_indices"}) {
      for (const Json& block : member(tower_, key)) {
        if (!block.is_number_integer() || (block >= 0 && block < *depth)) continue;
        impossible("config.json", fmt::format("vision_config.{}", key),
                   "expected numbers of blocks, 0 to {}, found {}", *depth - 1, quoted_setting(block));
        break;
      }
    }
  }

  /// Returns the number of patches along each side of an image; nullopt: the config does not state it.
  std::optional<int64_t> patches() const {
    const auto image = size(tower_, "image_size"), patch = size(tower_, "patch_size");
    return image && patch && *image >= *patch ? std::optional(*image / *patch) : std::nullopt;
  }
  const TensorInfo* positions() const {
    const auto at = std::ranges::find_if(s_.tensors, [](const TensorInfo& t) {
      return t.name.ends_with("embeddings.position_embedding.weight") && t.shape.size() == 2 &&
             t.name.find("vision") != t.name.npos;
    });
    return at == s_.tensors.end() ? nullptr : &*at;
  }

  /// Checks that there is a position for each patch, and perhaps one more for the whole image.
  void check_positions() {
    const auto side = patches();
    const TensorInfo* table = positions();
    if (!side || table == nullptr) return;
    const int64_t rows = table->shape[0], all = *side * *side;
    if (rows != all && rows != all + 1) {
      reporter_.add("config-shape", {"config.json", "vision_config.image_size"},
                    "expected {} patches of {} (the rows of {}), found {} by {} of {}", rows,
                    *size(tower_, "patch_size"), table->name, all, "image_size", *size(tower_, "image_size"));
      return;
    }
    // Images are brought to the size that the positions are for.
    const Json& given = member(processor_, "size");
    const auto height = size(given, "height"), width = size(given, "width"),
               image = size(tower_, "image_size");
    const bool resizes = member(processor_, "do_resize") != false &&
                         member(processor_, "do_center_crop") != true &&
                         member(processor_, "do_image_splitting").is_null();
    if (!height || !width || *height != *width || !resizes || *height == *image) return;
    impossible("preprocessor_config.json", "size", "expected {} (vision_config.image_size), found {}", *image,
               *height);
  }

  /// Checks that Gemma 3 can pool its patches to squares.
  void check_pooling() {
    const auto tokens = size(s_.config, "mm_tokens_per_image");
    const auto side = patches();
    if (!tokens || !side || member(s_.config, "model_type") != "gemma3") return;
    int64_t root = 1;
    while (root * root < *tokens) ++root;
    if (root * root != *tokens || *side % root != 0) {
      impossible("config.json", "mm_tokens_per_image",
                 "expected the square of a divisor of {}, the patches along a side, found {}", *side,
                 *tokens);
      return;
    }
    const auto length = size(processor_, "image_seq_length");
    if (length && *length != *tokens)
      impossible("preprocessor_config.json", "image_seq_length",
                 "expected {} (mm_tokens_per_image), found {}", *tokens, *length);
  }

  /// Compares the patches of Qwen's processors with those of the tower.
  void check_processor() {
    if (!size(processor_, "temporal_patch_size") && !size(processor_, "merge_size")) return;
    constexpr std::pair<const char*, const char*> kSame[] = {{"patch_size", "patch_size"},
                                                             {"temporal_patch_size", "temporal_patch_size"},
                                                             {"merge_size", "spatial_merge_size"}};
    for (const auto& [key, other] : kSame) {
      const auto found = size(processor_, key), expected = size(tower_, other);
      if (!found || !expected || *found == *expected) continue;
      impossible("preprocessor_config.json", key, "expected {} (vision_config.{}), found {}", *expected,
                 other, *found);
    }
  }

  void odd(const char* key, const char* expected, const Json& found) {
    reporter_.add("odd-setting", {kFile, key}, "expected {}, found {}", expected, quoted_setting(found));
  }
  static bool are_numbers(const Json& list, double least, double most) {
    return std::ranges::all_of(list, [&](const Json& one) {
      return one.is_number() && one.get<double>() >= least && one.get<double>() <= most;
    });
  }

  /// Checks the numbers by which pixels are scaled, and the limits of an image's size. Source:
  /// transformers 5.17, image_processing_utils.py, image_transforms.py.
  void check_numbers() {
    const Json& factor = member(processor_, "rescale_factor");
    const bool scales = member(processor_, "do_rescale") != false;
    if (!factor.is_null() && (!factor.is_number() || factor.get<double>() <= 0 || factor.get<double>() > 1))
      odd("rescale_factor", "a number of more than 0, at most 1", factor);
    auto channels = size(tower_, "in_chans");
    if (!channels) channels = size(tower_, "num_channels");
    const auto count = static_cast<size_t>(channels.value_or(3));
    constexpr double kLeastDeviation = 1e-3, kMost = 255;
    const double most = scales && (!factor.is_number() || factor.get<double>() < 1) ? 1 : kMost;
    for (const char* key : {"image_mean", "image_std"}) {
      const Json& list = member(processor_, key);
      if (!list.is_array()) continue;
      const bool is_mean = std::string_view(key) == "image_mean";
      if (list.size() != count || !are_numbers(list, is_mean ? 0 : kLeastDeviation, most))
        odd(key,
            fmt::format("{} numbers of {}, at most {}, one for each color", count,
                        is_mean ? "0 or more" : "more than 0", most)
                .c_str(),
            list);
    }
    const Json& given = member(processor_, "size");
    const std::pair<std::optional<int64_t>, std::optional<int64_t>> limits[] = {
        {size(processor_, "min_pixels"), size(processor_, "max_pixels")},
        {size(given, "shortest_edge"), size(given, "longest_edge")}};
    for (const auto& [least, limit] : limits) {
      if (!least || !limit || *least <= *limit) continue;
      impossible(kFile, least == limits[0].first ? "min_pixels" : "size.shortest_edge",
                 "expected at most {}, the upper limit, found {}", *limit, *least);
      break;
    }
  }

  /// Checks the class that prepares images, in families that have one.
  void check_class() {
    constexpr std::pair<const char*, const char*> kClasses[] = {
        {"qwen2_vl", "Qwen"},   {"qwen2_5_vl", "Qwen"}, {"qwen3_vl", "Qwen"},   {"qwen3_vl_moe", "Qwen"},
        {"gemma3", "Gemma3"},   {"mllama", "Mllama"},   {"llama4", "Llama4"},   {"idefics3", "Idefics3"},
        {"pixtral", "Pixtral"}, {"glm4v", "Glm"},       {"mistral3", "Pixtral"}};
    if (processor_.empty()) return odd("", "settings for images", processor_);
    const char* key =
        processor_.contains("image_processor_type") ? "image_processor_type" : "feature_extractor_type";
    const std::string own = text_of(processor_, key), type = text_of(s_.config, "model_type");
    if (own.empty() || processor_.contains("auto_map")) return;
    for (const auto& [model, name] : kClasses) {
      if (type != model || own.starts_with(name)) continue;
      impossible(kFile, key, "expected a class of {} (model_type), such as {}..., found {}", type, name,
                 json_quote_short(own));
    }
  }

  const LintInput& s_;
  LintReporter& reporter_;
  LintReporter unreported_;  // other rules report a file that cannot be read
  const Json& tower_;
  const Json processor_;
};

}  // namespace

void lint_vision_settings(const LintInput& s, LintReporter& reporter) {
  if (member(s.config, "vision_config").is_object()) VisionSettings(s, reporter).run();
}

}  // namespace twofour
