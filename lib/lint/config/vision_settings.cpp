#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
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
        processor_(read_lint_config(s.path, "preprocessor_config.json", unreported_)) {}

  void run() {
    check_blocks();
    check_positions();
    check_pooling();
    check_processor();
  }

 private:
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
                    "expected {} patches of {} as {} has rows, found {} by {} of {}", rows,
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
    impossible("preprocessor_config.json", "size", "expected {} as vision_config.image_size says, found {}",
               *image, *height);
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
                 "expected {} as mm_tokens_per_image says, found {}", *tokens, *length);
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
      impossible("preprocessor_config.json", key, "expected {} as vision_config.{} says, found {}", *expected,
                 other, *found);
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
