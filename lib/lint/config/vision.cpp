#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <map>
#include <optional>
#include <set>

#include "formats/json/access.h"
#include "formats/module_names.h"
#include "lib/lint/config/checks.h"
#include "lib/lint/config/layer_tensors.h"
#include "lib/lint/family/family_tensors.h"
#include "lib/source/config/model_config.h"

// Towers that read images, of families whose row has no parameters for them. vision_config is a config like
// the other: the sizes that all towers have are compared with it.

namespace twofour {
namespace {

/// A size that a key of vision_config states: that of a part with one of these names, in each block.
struct TowerSize {
  const char* key;
  std::initializer_list<std::string_view> parts;
  bool columns = false;  ///< the size is that of columns, not of rows
};
const TowerSize kTowerSizes[] = {
    {"embed_dim", {"norm1", "layer_norm1", "ln_1", "input_layernorm"}},
    {"hidden_size", {"norm1", "layer_norm1", "ln_1", "input_layernorm"}},
    {"intermediate_size", {"mlp.fc1", "mlp.linear_fc1"}},
    {"intermediate_size", {"mlp.fc2", "mlp.linear_fc2"}, true},
    {"intermediate_size", {"mlp.gate_proj", "mlp.up_proj"}},
    {"intermediate_size", {"mlp.down_proj"}, true},
};

/// Two linears. The second reads the outputs of the first. The first may also write gates.
constexpr std::pair<std::string_view, std::string_view> kChains[] = {
    {"fc1", "fc2"}, {"linear_fc1", "linear_fc2"}, {"up_proj", "down_proj"}, {"w3", "w2"}};

class VisionLint {
 public:
  VisionLint(const LintInput& s, const ModelFacts& model, LintReporter& reporter)
      : s_(s), model_(model), reporter_(reporter), tower_(member(s.config, "vision_config")) {}

  void run() {
    const std::vector<LayerGroup> groups = find_layer_groups(s_, *model_.coded);
    const LayerGroup* blocks = nullptr;
    for (const LayerGroup& group : groups) {
      if (!group.is_aside() && model_.is_held) continue;
      check_chains(group);
      const bool sees = group.container.find("vis") != std::string::npos;
      if (sees && (blocks == nullptr || group.layers.size() > blocks->layers.size())) blocks = &group;
    }
    if (blocks != nullptr && !s_.is_part) check_described(*blocks);
    const bool has_row =
        model_.family != nullptr && std::ranges::any_of(model_.family->parts, &FamilyPart::is_tower);
    if (blocks == nullptr || !tower_.is_object() || has_row || s_.is_part) return;
    check_depth(*blocks);
    for (const TowerSize& size : kTowerSizes) check_size(*blocks, size);
    check_patches();
    check_patch_table(*blocks);
    check_merger(*blocks);
  }

 private:
  void add(const std::string& key, int64_t expected, const std::string& tensor, int64_t found) {
    const auto at = s_.find(tensor);
    reporter_.add("config-shape", {"config.json", "vision_config." + key},
                  "expected {} as {} has {}, found {}", expected, tensor, describe(s_.tensors[*at]), found);
  }

  void check_chains(const LayerGroup& group) {
    for (const LayerTensors& layer : group.layers) {
      for (const auto& [name, part] : layer.parts) {
        for (const auto& [first, second] : kChains) {
          // Other rules compare the matrices of experts.
          if (leaf_of(name) != first || part.n <= 0 || has_part(name, "experts")) continue;
          const std::string_view parent = parent_of(name);
          const auto at = layer.parts.find(fmt::format("{}{}{}", parent, parent.empty() ? "" : ".", second));
          if (at == layer.parts.end() || at->second.k <= 0) continue;
          if (part.n == at->second.k || part.n == 2 * at->second.k) continue;
          report_chain(at->second, part);
        }
      }
    }
  }
  void report_chain(const LayerPart& second, const LayerPart& first) {
    if (model_.reported.contains(second.tensor) || model_.reported.contains(first.tensor)) return;
    reporter_.add("config-shape", s_.at(second.tensor), "expected {} columns (the rows of {}), found {}",
                  first.n, s_.tensors[first.tensor].name, describe(s_.tensors[second.tensor]));
  }

  void check_depth(const LayerGroup& blocks) {
    for (const char* key : {"depth", "num_hidden_layers", "layers"}) {
      const auto configured = integer_of(tower_, key);
      if (!configured) continue;
      const int64_t last = blocks.layers.back().layer;
      if (last + 1 == *configured) return;
      reporter_.add(last + 1 > *configured ? "layers-extra" : "layers-missing",
                    {"config.json", fmt::format("vision_config.{}", key)},
                    "expected {} (the tensors of {}.{}), found {}", last + 1, blocks.container, last,
                    *configured);
      return;
    }
  }

  void check_size(const LayerGroup& blocks, const TowerSize& size) {
    // Where a tower has both, hidden_size is the width of what it gives to the model.
    if (std::string_view(size.key) == "hidden_size" && tower_.contains("embed_dim")) return;
    const auto configured = integer_of(tower_, size.key);
    std::set<int64_t> sizes;
    size_t tensor = 0;
    for (const LayerTensors& layer : blocks.layers) {
      for (const std::string_view name : size.parts) {
        const auto at = layer.parts.find(std::string(name));
        const int64_t found = at == layer.parts.end() ? 0 : size.columns ? at->second.k : at->second.n;
        if (found > 0 && sizes.insert(found).second) tensor = at->second.tensor;
      }
    }
    if (configured && sizes.size() == 1 && *sizes.begin() != *configured)
      add(size.key, *sizes.begin(), s_.tensors[tensor].name, *configured);
  }

  void check_patches() {
    const auto configured = integer_of(tower_, "patch_size");
    if (!configured) return;
    for (const TensorInfo& t : s_.tensors) {
      if (t.shape.size() < 4 || t.name.find("vis") == t.name.npos ||
          t.name.find("patch_embed") == t.name.npos)
        continue;
      if (t.shape.back() != *configured) add("patch_size", t.shape.back(), t.name, *configured);
      return;
    }
  }

  /// Returns the width of a tower, that of the first norm of each block; nullopt: blocks differ.
  static std::optional<int64_t> width_of(const LayerGroup& blocks) {
    std::set<int64_t> widths;
    for (const LayerTensors& layer : blocks.layers) {
      for (const char* name : {"norm1", "layer_norm1", "ln_1", "input_layernorm"}) {
        const auto at = layer.parts.find(name);
        if (at != layer.parts.end() && at->second.n > 0) widths.insert(at->second.n);
      }
    }
    return widths.size() == 1 ? std::optional(*widths.begin()) : std::nullopt;
  }

  /// Reports blocks of a tower that config.json does not describe, or whose class has none.
  void check_described(const LayerGroup& blocks) {
    constexpr size_t kFew = 2;
    const std::vector<std::string> classes = strings_of(s_.config, "architectures");
    const bool sees = std::ranges::any_of(
        classes, [](const std::string& name) { return name.ends_with("ForConditionalGeneration"); });
    if (blocks.layers.size() < kFew || s_.config.contains("auto_map")) return;
    bool has_config = false;
    for (const auto& [key, value] : members_of(s_.config))
      has_config = has_config || (value.is_object() && is_of_tower(key));
    if (!has_config && sees) {
      reporter_.add("odd-setting", {"config.json", "vision_config"},
                    "expected the config of the tower, because {} is stored, found none", blocks.container);
    } else if (tower_.is_object() && model_.family != nullptr && classes.size() == 1 &&
               classes[0].ends_with("ForCausalLM") && !is_class_of_tower(classes[0])) {
      const auto model = find_language_model(s_.config);
      if (!model || model->is_nested || text_of(s_.config, "model_type") != model->model_type) return;
      if (find_family_of_class(classes[0].substr(0, classes[0].find("For"))) != model->family) return;
      reporter_.add("impossible-setting", {"config.json", "architectures"},
                    "expected a class that reads images, because {} and vision_config are there, found {}",
                    blocks.container, json_quote_short(classes[0]));
    }
  }
  static bool is_of_tower(const std::string& key) {
    return std::ranges::any_of(
        std::initializer_list<const char*>{"vis", "vit", "img", "image", "embd", "mm", "encoder"},
        [&](const char* word) { return key.find(word) != key.npos; });
  }
  static bool is_class_of_tower(const std::string& name) {
    return std::ranges::any_of(std::initializer_list<const char*>{"VL", "Llava", "MM", "Vision", "Omni", "V"},
                               [&](const char* word) { return name.find(word) != name.npos; });
  }

  /// Checks the table that turns patches into vectors.
  void check_patch_table(const LayerGroup& blocks) {
    const auto width = width_of(blocks);
    bool has_table = false;
    for (size_t i = 0; i < s_.tensors.size(); ++i) {
      const TensorInfo& t = s_.tensors[i];
      if (t.name.find("vis") == t.name.npos) continue;
      for (const char* word : {"patch", "conv", "embed", "stem", "proj_in", "tokenizer"})
        has_table = has_table || t.name.find(word) != t.name.npos;
      const bool is_table = t.shape.size() >= 4 && t.name.find("patch_embed") != t.name.npos &&
                            t.name.ends_with("weight") && !model_.reported.contains(i);
      if (!is_table) continue;
      const auto patch = integer_of(tower_, "patch_size"), frames = integer_of(tower_, "temporal_patch_size");
      constexpr size_t kVideo = 5;  // [width, channels, frames, height, width of a patch]
      const bool has_frames = t.shape.size() == kVideo;
      if (frames && *frames > 1 && has_frames && t.shape[2] != *frames)
        add("temporal_patch_size", t.shape[2], t.name, *frames);
      if (frames && *frames > 1 && !has_frames)
        reporter_.add("config-shape", s_.at(i),
                      "expected five dimensions, because temporal_patch_size is {}, found {}", *frames,
                      describe(t));
      if (width && t.shape[0] != *width)
        reporter_.add("config-shape", s_.at(i), "expected {} rows (the width of {}), found {}", *width,
                      blocks.container, describe(t));
      if (!patch || t.shape.back() != *patch) continue;
      for (const char* key : {"in_chans", "in_channels", "num_channels"}) {
        const auto channels = integer_of(tower_, key);
        if (!channels) continue;
        if (*channels != t.shape[1]) add(key, t.shape[1], t.name, *channels);
        break;
      }
    }
    if (has_table || s_.lacks_files) return;
    const std::string parent(parent_of(blocks.container));
    // A checkpoint of blocks alone is a part of a tower.
    const bool has_more = std::ranges::any_of(s_.tensors, [&](const TensorInfo& t) {
      return is_below(t.name, parent) && !is_below(t.name, blocks.container);
    });
    if (!has_more) return;
    reporter_.add(
        "tensor-missing", {"", parent + ".patch_embed"},
        "expected the table that turns patches of images into vectors, because {} is stored, found none",
        blocks.container);
  }

  /// Checks what joins patches and brings them to the width of the language model. Source: transformers 5.17,
  /// modeling_qwen2_vl.py, modeling_qwen2_5_vl.py, modeling_qwen3_vl.py.
  void check_merger(const LayerGroup& blocks) {
    if (!text_of(s_.config, "model_type").starts_with("qwen")) return;
    const std::string merger = std::string(parent_of(blocks.container)) + ".merger.";
    const auto width = width_of(blocks), side = integer_of(tower_, "spatial_merge_size");
    const auto find = [&](std::initializer_list<const char*> names) -> std::optional<size_t> {
      for (const char* name : names) {
        const auto at = s_.find(fmt::format("{}{}.weight", merger, name));
        if (at) return at;
      }
      return std::nullopt;
    };
    const auto first = find({"mlp.0", "linear_fc1"}), last = find({"mlp.2", "linear_fc2"});
    if (!first || !last) return;
    if (!find({"ln_q", "norm", "post_projection_norm"}) && !s_.lacks_files)
      reporter_.add("tensor-missing", {"", merger + (find({"mlp.0"}) ? "ln_q" : "norm")},
                    "expected the norm before {}, found none", s_.tensors[*first].name);
    const TensorInfo &a = s_.tensors[*first], &b = s_.tensors[*last];
    if (!is_float(a.dtype) || !is_float(b.dtype) || a.shape.size() != 2 || b.shape.size() != 2) return;
    const auto differ = [&](size_t tensor, const char* what, int64_t expected) {
      const TensorInfo& t = s_.tensors[tensor];
      if (t.shape[1] == expected || model_.reported.contains(tensor)) return;
      reporter_.add("config-shape", s_.at(tensor), "expected {} {}, found {}", expected, what, describe(t));
    };
    if (width && side && *side > 0)
      differ(*first, "columns (the width of all patches that are joined)", *width * *side * *side);
    differ(*last, "columns (the rows of the linear before it)", a.shape[0]);
    const auto configured = integer_of(tower_, "out_hidden_size");
    if (configured && *configured != b.shape[0]) add("out_hidden_size", b.shape[0], b.name, *configured);
  }

  const LintInput& s_;
  const ModelFacts& model_;
  LintReporter& reporter_;
  const Json& tower_;
};

}  // namespace

void lint_vision(const LintInput& s, const ModelFacts& model, LintReporter& reporter) {
  if (!s.is_directory || !s.config.is_object() || !s.layout.empty()) return;
  VisionLint(s, model, reporter).run();
  lint_vision_settings(s, reporter);
}

}  // namespace twofour
