#include "lib/lint/family/family_tensors.h"
#include "formats/json/access.h"

#include <algorithm>
#include <cctype>
#include <set>
#include <unordered_map>

#include "formats/module_names.h"
#include "formats/weight_dialect.h"

namespace twofour {

namespace {

/// Returns a text in lower case, without underscores.
std::string folded_class(std::string_view text) {
  std::string folded;
  for (const char c : text) {
    if (c != '_') folded += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return folded;
}

/// Returns how the class names of a family's i-th model_type begin.
std::string class_of_type(const FamilyShapes& family, size_t i) {
  if (family.class_names[i] != nullptr) return folded_class(family.class_names[i]);
  std::string_view type = family.model_types[i];
  if (type.ends_with("_text")) type.remove_suffix(5);
  return folded_class(type);
}

}  // namespace

bool is_class_of_family(const Json& config, const LanguageModel& model) {
  const std::vector<std::string> classes = strings_of(config, "architectures");
  if (classes.empty() || model.is_nested) return true;
  const auto& types = model.family->model_types;
  const auto at =
      std::ranges::find_if(types, [&](const char* t) { return t != nullptr && model.model_type == t; });
  const std::string own = class_of_type(*model.family, static_cast<size_t>(at - types.begin()));
  return std::any_of(classes.begin(), classes.end(), [&](const std::string& name) {
    const std::string stem = folded_class(name.substr(0, name.find("For")));
    return stem == own || (stem.starts_with(own) && find_family_of_class(stem) == nullptr);
  });
}

const FamilyShapes* find_family_of_class(std::string_view stem) {
  for (const FamilyShapes& family : family_shapes()) {
    for (size_t i = 0; i < family.model_types.size() && family.model_types[i] != nullptr; ++i) {
      if (folded_class(stem) == class_of_type(family, i)) return &family;
    }
  }
  return nullptr;
}

namespace {

using Kind = ParameterKind;

/// Returns the number of codes in a 32-bit word, as the config states it.
int64_t codes_in_word(const Json& quantization) {
  const auto bits_of = [](const Json& json, const char* key) -> int64_t {
    const auto at = json.is_object() ? json.find(key) : json.end();
    return json.is_object() && at != json.end() && at->is_number_integer() ? at->get<int64_t>() : 0;
  };
  int64_t bits = bits_of(quantization, "bits");
  if (bits == 0) bits = bits_of(quantization, "w_bit");
  if (quantization.is_object() && quantization.contains("config_groups")) {
    for (const Json& group : quantization["config_groups"]) {
      if (!group.is_object() || !group.contains("weights")) continue;
      const Json& weights = group["weights"];
      const bool is_int = weights.is_object() && weights.contains("type") && weights["type"] == "int";
      if (const int64_t configured = bits_of(weights, "num_bits"); is_int && configured > 0)
        bits = configured;
    }
  }
  return bits == 2 || bits == 8 ? 32 / bits : 8;
}

/// Finds the row of a family for each name. It caches names that differ only in their numbers.
class TensorMatcher {
 public:
  TensorMatcher(const LintInput& input, const LanguageModel& model, FamilyTensors& all,
                const PartRows* part = nullptr)
      : s_(input), all_(all), part_(part), names_(all.rows), sizes_(*model.family, *model.config) {
    pack_ = codes_in_word(input.quantization);
    for (const Nvfp4Linear& m : input.modules) {
      if (m.dialect->stacked) stacks_.emplace(m.codes, &m);
    }
  }

  void match() {
    std::set<int64_t> layers;
    for (size_t i = 0; i < s_.tensors.size(); ++i) {
      folded_.fold(s_.tensors[i].name);
      auto& numbers = folded_.numbers;
      if (part_ != nullptr) numbers[0] += part_->offset;
      // Modules of a part may have numbers that are not those of layers: "mm_projector.proj.2".
      const auto exact = part_ != nullptr ? names_.find(s_.tensors[i].name) : std::span<const size_t>();
      const int32_t row = exact.empty() ? find() : static_cast<int32_t>(exact[0]);
      if (part_ != nullptr && (row < 0 || is_of_other_layer(row))) continue;
      if (part_ != nullptr ? all_.rows[static_cast<size_t>(row)].has_layer : has_layer_ && is_main_)
        layers.insert(numbers[0]);
      if (row == kIgnored) continue;
      if (row < 0) {
        UnknownTensors& u = all_.unknown[static_cast<size_t>(-row - 2)];
        if (u.count++ == 0) u.first = i;
        continue;
      }
      const FamilyRow& r = all_.rows[static_cast<size_t>(row)];
      if ((r.has_layer && numbers[0] > INT32_MAX) || (r.has_expert && numbers[1] > INT32_MAX)) continue;
      all_.tensors.push_back({i, row, r.has_layer ? static_cast<int32_t>(numbers[0]) : -1,
                              r.has_expert ? static_cast<int32_t>(numbers[1]) : -1, shape_of(i, r)});
    }
    all_.layers.assign(layers.begin(), layers.end());
  }

 private:
  static constexpr int32_t kIgnored = -1;

  /// True if a tensor of a part is in a layer that is not the part's.
  bool is_of_other_layer(int32_t row) const {
    const int64_t number = folded_.numbers[0] - part_->offset;
    return all_.rows[static_cast<size_t>(row)].has_layer && (number < part_->first || number >= part_->end);
  }

  /// Returns the row of the folded name. The result is kIgnored, or a number below it for a name in
  /// `unknown`.
  int32_t find() {
    auto at = known_.find(folded_.text);
    if (at == known_.end()) at = known_.emplace(folded_.text, look_up()).first;
    has_layer_ = at->second.has_layer;
    is_main_ = at->second.is_main;
    const int64_t layer = folded_.numbers[0];
    if (at->second.others.empty() || holds(at->second.row, layer)) return at->second.row;
    for (const size_t other : at->second.others) {
      if (holds(static_cast<int32_t>(other), layer)) return static_cast<int32_t>(other);
    }
    return at->second.row;
  }
  bool holds(int32_t row, int64_t layer) const {
    return sizes_.holds(all_.rows[static_cast<size_t>(row)].when, layer);
  }

  struct Known {
    int32_t row;
    bool has_layer, is_main;
    std::span<const size_t> others;  ///< other rows with the same name
  };
  Known look_up() {
    const std::string name = text_model_name(folded_.text);
    const bool is_main = name.starts_with("model.layers.#.") || name.starts_with("layers.#.") ||
                         name.starts_with("backbone.layers.#.") || name.starts_with("model.llm.layers.#.");
    const auto known = [&](int32_t row, std::span<const size_t> others = {}) {
      return Known{row, is_main, is_main, others};
    };
    if (const auto rows = names_.find(name); !rows.empty())
      return known(static_cast<int32_t>(rows[0]), rows.subspan(1));
    if (part_ != nullptr || is_aside(name) || belongs_to_known(name)) return known(kIgnored);
    all_.unknown.push_back({name, 0, 0});
    return known(-1 - static_cast<int32_t>(all_.unknown.size()));
  }

  /// True for names of towers, projectors and drafts, which have layers of their own.
  static bool is_aside(const std::string& name) {
    for (const char* part : {"vision", "visual", "audio", "tower", "projector", "merge", "mtp", "nextn",
                             "draft", "eagle", "image", "speech", "mm_", "patch_", "ngram_embedding"}) {
      if (name.find(part) != name.npos) return true;
    }
    return false;
  }
  /// True for tensors of quantizers, caches and adapters that are beside a linear. Other rules check them.
  bool belongs_to_known(const std::string& name) const {
    const std::string_view leaf = leaf_of(name);
    // Parts of layouts belong to artifacts.
    if (s_.layout.empty() && !s_.has_manifest && (leaf.ends_with("_comp") || leaf.ends_with("_meta")))
      return false;
    for (const char* part :
         {"scale",       "zero",     "shape",    "g_idx",     "inv_freq", "amax",   "lora",
          "masked_bias", "hadamard", "rotation", "smooth",    "comp",     "meta",   "packed",
          "_weight",     "perm",     "svd",      "transform", "qdata",    "channel"}) {
      if (leaf.find(part) != leaf.npos || name.find("lora_") != name.npos) return true;
    }
    return s_.tensors.empty();
  }

  std::optional<LogicalShape> shape_of(size_t i, const FamilyRow& row) const {
    const TensorInfo& t = s_.tensors[i];
    const std::vector<int64_t>& d = t.shape;
    const std::string_view name = t.name;
    if (s_.foreign.contains(module_of(name))) return std::nullopt;
    if (const auto stack = stacks_.find(i); stack != stacks_.end())
      return LogicalShape{stack->second->e, stack->second->n, stack->second->k};
    switch (row.kind) {
      case Kind::kAny:
        return std::nullopt;
      case Kind::kVector:
      case Kind::kNorm:
        if (d.size() == 1) return LogicalShape{-1, d[0], -1};
        return std::nullopt;
      case Kind::kStackVector:
        if (d.size() == 2) return LogicalShape{d[0], d[1], -1};
        return std::nullopt;
      case Kind::kConvolution:
        if (d.size() == 3 && d[1] == 1) return LogicalShape{-1, d[0], d[2]};
        return std::nullopt;
      case Kind::kPatches:
        if (d.size() == 4 && d[1] == 3 && d[2] == d[3]) return LogicalShape{-1, d[0], d[3]};
        return std::nullopt;
      case Kind::kTwoPatches:
        if (d.size() == 5 && d[1] == 3 && d[2] == 2 && d[3] == d[4]) return LogicalShape{-1, d[0], d[4]};
        return std::nullopt;
      case Kind::kGrid:
        if (d.size() == 3 && d[0] == d[1]) return LogicalShape{-1, d[0], d[2]};
        return std::nullopt;
      case Kind::kRowStack:
      case Kind::kColumnStack: {
        if (name.ends_with("_blocks") && d.size() == 4) return LogicalShape{d[0], d[1], d[2] * d[3] * 2};
        if (d.size() != 3) return std::nullopt;
        const int64_t codes = t.dtype == DType::kU8 ? 2 : 1;  // number of codes in a byte, along K
        if (row.kind == Kind::kColumnStack && codes == 2 && is_packed_along_rows(t))
          return LogicalShape{d[0], d[2] * codes, d[1]};
        if (row.kind == Kind::kRowStack) return LogicalShape{d[0], d[1], d[2] * codes};
        return LogicalShape{d[0], d[2], d[1] * codes};
      }
      default:
        return matrix_shape(t);
    }
  }
  /// True if a stack [E, K, N] has its groups along N, as with ModelOpt's groups of 32.
  bool is_packed_along_rows(const TensorInfo& t) const {
    const auto scale = s_.find(t.name + "_weight_scale");
    if (!scale) return false;
    const TensorInfo& of = s_.tensors[*scale];
    return of.shape.size() == 3 && of.shape[1] == t.shape[1] && of.shape[2] == t.shape[2] * 2 / kMxGroup;
  }
  std::optional<LogicalShape> matrix_shape(const TensorInfo& t) const {
    const std::vector<int64_t>& d = t.shape;
    const std::string_view name = t.name;
    if (d.size() != 2 || d[0] > kLargest || d[1] > kLargest) return std::nullopt;
    if (name.ends_with(".qweight")) {
      const auto scales = s_.find(std::string(module_of(name)) + ".scales");
      if (!scales || s_.tensors[*scales].shape.size() != 2) return std::nullopt;
      const int64_t n = s_.tensors[*scales].shape[1];
      // AWQ's words are along N, GPTQ's along K. GPTQ's zero points are packed along N.
      if (n != d[1]) return LogicalShape{-1, d[1] > 0 && n % d[1] == 0 ? n : d[1] * pack_, d[0]};
      const auto zeros = s_.find(std::string(module_of(name)) + ".qzeros");
      const int64_t words = zeros && s_.tensors[*zeros].shape.size() == 2 ? s_.tensors[*zeros].shape[1] : 0;
      return LogicalShape{-1, n, d[0] * (words > 0 && n % words == 0 ? n / words : pack_)};
    }
    if (t.dtype == DType::kI32) return LogicalShape{-1, d[0], d[1] * pack_};
    if (t.dtype == DType::kU8 && name.ends_with(".weight_packed")) {
      const auto scale = s_.find(std::string(module_of(name)) + ".weight_scale");
      if (scale && are_sixes(d, s_.tensors[*scale].shape)) return LogicalShape{-1, d[0], d[1] / 3 * 4};
    }
    const bool pairs =
        t.dtype == DType::kU8 || (t.dtype == DType::kI8 && s_.find(std::string(module_of(name)) + ".scale"));
    return LogicalShape{-1, d[0], pairs ? d[1] * 2 : d[1]};
  }

  static constexpr int64_t kLargest = int64_t{1} << 40;
  const LintInput& s_;
  FamilyTensors& all_;
  const PartRows* part_;  ///< nullptr: the rows are those of the family
  const FamilyNames names_;
  const FamilySizes sizes_;
  int64_t pack_ = 8;
  std::unordered_map<std::string, Known> known_;
  std::unordered_map<size_t, const Nvfp4Linear*> stacks_;
  FoldedName folded_;
  bool has_layer_ = false, is_main_ = false;
};

}  // namespace

FamilyTensors find_family_tensors(const LintInput& input, const LanguageModel& model) {
  FamilyTensors all;
  all.rows = family_rows(model.family->parameters);
  all.tensors.reserve(input.tensors.size() / 2);
  TensorMatcher(input, model, all).match();
  return all;
}

FamilyTensors find_part_tensors(const LintInput& input, const LanguageModel& model, PartRows part) {
  FamilyTensors all;
  all.rows = std::move(part.rows);
  all.offset = part.offset;
  TensorMatcher(input, model, all, &part).match();
  return all;
}

}  // namespace twofour
