#include "lib/source/linears/weight_terms.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "formats/error.h"
#include "formats/module_parts.h"
#include "formats/module_roles.h"
#include "formats/naming.h"
#include "formats/weight_dialect.h"
#include "lib/base/names/block_orders.h"
#include "lib/base/names/weight_names.h"
#include "lib/source/config/config_terms.h"
#include "lib/source/config/model_config.h"
#include "lib/source/config/quantization_config.h"
#include "lib/source/linears/linear_shapes.h"
#include "lib/source/linears/tensor_values.h"

namespace twofour {
namespace {

/// True if the decoder of `weight` accounts for the term `own`, which must have the name that the decoder
/// looks up.
bool is_decoded(const TensorInfo& weight, const TensorInfo& own, const PartName& name) {
  const ModulePart& term = *name.part;
  if (!term.decoder || own.name.size() != name.module.size() + 1 + term.name.size()) return false;
  if ((*term.decoder)->global_scale)
    return weight.dtype == DType::kU8 && (own.shape.empty() || own.shape == std::vector<int64_t>{1});
  return (*term.decoder)->integers && weight.dtype == DType::kI32 && own.name[name.module.size()] == '.' &&
         weight.name.ends_with(term.codes);
}

bool is_readable(const TensorAccess& access, size_t tensor) {
  return access.read && (access.whole == nullptr || (*access.whole)[tensor]);
}
ReadBytes read_of(const TensorAccess& access, size_t tensor) {
  return [&access, tensor](uint64_t at, std::span<uint8_t> out) { access.read(tensor, at, out); };
}

std::string text_of_term(std::string_view linear, const char* effect) {
  return fmt::format(
      "expected weights that consist of values and scales only, found this tensor beside {}, {}", linear,
      effect);
}

bool is_plain_float(DType type) {
  return type == DType::kBF16 || type == DType::kF16 || type == DType::kF32 || type == DType::kF64;
}

/// Returns the linear, or stack of linears, whose codes a tensor holds; nullopt if it holds none.
std::optional<WeightName> codes_at(const TensorInfo& t) {
  return t.shape.size() < 2 || is_plain_float(t.dtype) ? std::nullopt : weight_name(t);
}

/// Returns the suffixes of the scales that the reader of these codes uses, from the first row of the dialects
/// that matches. Empty: no row matches, and the scales are unknown. `beside` are the tensors beside the
/// codes.
std::vector<std::string_view> scales_of(std::span<const TensorInfo> beside, const WeightName& codes,
                                        DType type) {
  const auto find = [&](const char* suffix) { return find_tensor(beside, codes.linear + suffix); };
  if (type == DType::kU8) {
    for (const Nvfp4Dialect& d : nvfp4_dialects()) {
      if (d.codes == codes.suffix && find(d.block_scale) && find(d.global_scale))
        return {std::string_view(d.block_scale).substr(1), std::string_view(d.global_scale).substr(1)};
    }
  }
  for (const WeightDialect& d : weight_dialects()) {
    if (d.scale == nullptr || d.weight != codes.suffix || !d.weight_types.has(type)) continue;
    const auto scale = find(d.scale);
    if (!scale || !d.scale_types.has(beside[*scale].dtype)) continue;
    std::vector<std::string_view> scales{std::string_view(d.scale).substr(1)};
    if (d.global_scale != nullptr) scales.push_back(std::string_view(d.global_scale).substr(1));
    return scales;
  }
  return {};
}

class Terms {
 public:
  explicit Terms(const TensorAccess& access) : access_(access) {}

  std::vector<WeightTerm> find() {
    note_files();
    for (size_t i = 0; i < access_.tensors.size(); ++i) {
      add_listed(i);
      add_flattened(i);
      if (const std::string wide = wide_linear(tensor(i)); !wide.empty())
        add(i, std::nullopt, std::string(module_of(tensor(i).name)), "unsupported-format", wide);
      if (const auto codes = codes_at(access_.tensors[i]); codes && !is_computed(i)) {
        add_beside(i, *codes);
        if (const auto table = table_of_piece(codes->linear); !table.empty()) add_beside_pieces(i, table);
        add_described(i, *codes);
        add_odd_shape(i, *codes);
      } else if (is_plain_float(tensor(i).dtype) && tensor(i).shape.size() > 1) {
        add_beside_floats(i);
      }
    }
    for (BlockOrder& order : find_block_orders(access_.tensors, access_.read, access_.whole))
      add(order.tensor, std::nullopt, order.block, "weight-term", std::move(order.problem), order.block);
    for (const SecondHome& home : find_second_homes(access_.tensors)) {
      add(home.tensor, home.tensor, weight_name(tensor(home.tensor))->linear, "two-weights",
          fmt::format("expected no {} beside it, found one: two weights of one module",
                      tensor(home.other).name),
          home.above);
    }
    if (!access_.is_part) add_lost();
    std::ranges::stable_sort(found_, {}, &WeightTerm::tensor);
    return std::move(found_);
  }

 private:
  const TensorInfo& tensor(size_t i) const { return access_.tensors[i]; }
  bool is_computed(size_t i) const {
    return std::binary_search(access_.computed.begin(), access_.computed.end(), i);
  }
  void add(size_t i, std::optional<size_t> weight, std::string linear, const char* rule, std::string problem,
           std::optional<std::string> scope = {}) {
    found_.push_back({i, weight, std::move(linear), rule, std::move(problem), false, std::move(scope)});
  }

  void note_files() {
    for (size_t i = 0; access_.file && i < access_.tensors.size(); ++i) {
      const Shard& shard = access_.file(i);
      if (!shard.described.empty()) described_.insert(&shard);
    }
  }

  /// Adds a tensor whose name is on the list of module_parts.h: as a term, or as a part of a missing linear.
  void add_listed(size_t i) {
    const auto name = parse_part_name(tensor(i).name);
    const PartKind kind = name ? name->part->kind : PartKind::kPart;
    if (kind != PartKind::kTerm && kind != PartKind::kState) others_.push_back(i);
    if (!name || (kind != PartKind::kTerm && !shows_codes(i, *name))) return;
    std::string linear(name->module);
    const auto weight = linear.empty() ? std::nullopt : find_weight_beside(i, linear);
    if (!weight && name->part->needs_codes && !linear.empty()) return add_incomplete(i, *name);
    if (!weight && kind != PartKind::kTerm) return add_incomplete(i, *name);
    if (!weight) return lost_.push_back({i, *name});
    const bool is_term = kind == PartKind::kTerm && *weight != i &&
                         !is_decoded(tensor(*weight), tensor(i), *name) &&
                         !changes_nothing(access_, i, name->part->harmless);
    if (!is_term) return;
    std::string problem = text_of_term(linear, name->part->effect);
    add(i, weight, std::move(linear), "weight-term", std::move(problem));
  }

  std::optional<size_t> find_weight_beside(size_t i, const std::string& linear) const {
    const Neighbours beside = find_neighbours(access_.tensors, i, linear);
    const auto at = find_weight(beside.tensors, linear);
    return at ? std::optional(beside.first + *at) : std::nullopt;
  }

  /// True if a tensor's name implies codes beside it. Norms and blocks of towers have a "scale", too. Scales
  /// of codes are matrices or E8M0.
  bool shows_codes(size_t i, const PartName& name) const {
    if (name.part->needs_codes) return true;
    const TensorInfo& t = tensor(i);
    if (name.part->kind != PartKind::kScale || t.shape.size() < 2) return false;
    if (name.part->name == "scales") return true;
    if (t.dtype == DType::kF8E8M0) return true;
    const bool has_method = access_.config != nullptr && quantization_entry(*access_.config).has_value();
    return has_method && t.shape.size() == 2 && is_linear_name(name.module);
  }

  /// Adds the terms whose linears are missing.
  void add_lost() {
    for (const auto& [i, name] : lost_) {
      std::string problem =
          name.module.empty()
              ? fmt::format("expected no such tensor, found one, {}", name.part->effect)
              : fmt::format("expected the weights of {} beside it, found none: it may belong to others, {}",
                            name.module, name.part->effect);
      add(i, std::nullopt, std::string(name.module), "weight-term", std::move(problem),
          scope_of(name.module));
    }
  }

  /// Returns the nearest module or block above a name that has tensors. Empty: there is none in the name's
  /// layer.
  std::string scope_of(std::string_view module) const {
    const auto is_numbered = [](std::string_view name) {
      return any_part(name, [](std::string_view part) { return parse_index(part).has_value(); });
    };
    for (std::string_view at = module; !at.empty(); at = parent_of(at)) {
      const std::string below = std::string(at) + ".";
      const auto first =
          std::lower_bound(others_.begin(), others_.end(), below,
                           [&](size_t i, const std::string& prefix) { return tensor(i).name < prefix; });
      if (first == others_.end() || !tensor(*first).name.starts_with(below)) continue;
      return is_numbered(module) && !is_numbered(at) ? "" : std::string(at);
    }
    return "";
  }

  /// True for an embedding whose pieces share a scale beside them.
  bool is_of_table(std::string_view module) const {
    return std::ranges::any_of(
        tensors_below(access_.tensors, std::string(module) + ".").tensors,
        [&](const TensorInfo& t) { return table_of_piece(module_of(t.name)) == module; });
  }

  void add_incomplete(size_t i, const PartName& name) {
    // Names that end like a stack's "X_weight_scale", without a dot, imply codes only for a stack.
    const bool is_dotted = tensor(i).name[name.module.size()] == '.';
    const bool is_stack = !is_dotted && parse_module_name(name.module).has_value();
    if (access_.is_part || (!is_dotted && !is_stack) || is_of_table(name.module)) return;
    if (!incomplete_.emplace(name.module).second) return;
    add(i, std::nullopt, std::string(name.module), "incomplete-module",
        fmt::format("expected the weights of {} beside it, found none: export the module again",
                    name.module));
  }

  /// Adds experts that are stored as one matrix. Nothing states their number.
  void add_flattened(size_t i) {
    const TensorInfo& t = tensor(i);
    if (t.shape.size() != 2) return;
    std::string_view linear = t.name;
    for (const std::string_view suffix : kWeightSuffixes) {
      if (t.name.ends_with(suffix)) linear.remove_suffix(suffix.size());
      if (linear.size() < t.name.size()) break;
    }
    const auto name = parse_module_name(linear);
    const int64_t experts = access_.config != nullptr ? promised_experts(*access_.config) : 0;
    const bool by_rows = !t.name.ends_with(".qweight");
    const bool divides = experts > 1 && (!by_rows || t.shape[0] % experts == 0);
    const bool is_matrix = linear.size() < t.name.size() || !is_plain_float(t.dtype);
    const bool is_known = name && name->kind == BlockKind::kRoutedExperts && name->expert < 0;
    if (!is_known && (name || !is_matrix || !divides || !is_matrix_of_experts(linear))) return;
    const std::string count = experts > 0 ? fmt::format(", {} experts (config.json)", experts) : "";
    const std::string shape =
        !by_rows ? "[E, ...] or single experts"
        : experts == 0
            ? "[E, N, K]"
            : fmt::format("[{}, {}, {}]", experts, divides ? fmt::format("{}", t.shape[0] / experts) : "N",
                          divides ? fmt::format("{}", t.shape[1]) : "K");
    add(i, i, std::string(linear), "module-shape",
        fmt::format("expected a stack of experts {}{}, found {}", shape, count, describe(t)));
  }

  /// Adds all other tensors that are named as parts of a module with codes.
  void add_beside(size_t i, const WeightName& codes) {
    const Neighbours beside = find_neighbours(access_.tensors, i, codes.linear);
    const std::vector<std::string_view> scales = scales_of(beside.tensors, codes, tensor(i).dtype);
    for (const char separator : std::string_view(codes.is_stack ? "._" : ".")) {
      const std::string prefix = codes.linear + separator;
      const Neighbours below = tensors_below(beside.tensors, prefix, beside.first);
      for (size_t other = below.first; other < below.first + below.tensors.size(); ++other)
        add_unknown(i, codes, scales, other, prefix.size());
    }
  }
  void add_unknown(size_t i, const WeightName& codes, std::span<const std::string_view> scales, size_t other,
                   size_t begin) {
    const std::string_view below = std::string_view(tensor(other).name).substr(begin);
    const ModulePart& part = find_module_part(below);
    const bool is_own = other == i || (codes.is_stack && below == "blocks");
    const bool is_odd_scale = part.kind == PartKind::kScale && !scales.empty() &&
                              std::find(scales.begin(), scales.end(), below) == scales.end();
    if (is_own || (part.kind != PartKind::kUnknown && !is_odd_scale)) return;
    const char* effect = is_odd_scale ? "a scale beside the scales that its codes have" : part.effect;
    add(other, i, codes.linear, "weight-term", text_of_term(codes.linear, effect));
  }

  /// Adds all tensors beside the floats of a linear, or of a stack of linears, whose names are not on the
  /// list.
  void add_beside_floats(size_t i) {
    const auto weights = weight_name(tensor(i));
    if (!weights) return;
    const std::string& linear = weights->linear;
    const bool is_table = is_embedding(linear);
    if (!weights->is_stack && !is_table && !is_linear_name(linear)) return;
    if (is_router(linear)) return;  // families scale and correct its results by tensors of their own
    for (const char separator : std::string_view(weights->is_stack ? "._" : ".")) {
      const Neighbours below = tensors_below(access_.tensors, linear + separator);
      for (size_t other = below.first; other < below.first + below.tensors.size(); ++other) {
        const std::string_view name = std::string_view(tensor(other).name).substr(linear.size() + 1);
        const bool is_known = other == i || find_module_part(name).kind != PartKind::kUnknown ||
                              (is_table && !table_of_piece(module_of(tensor(other).name)).empty());
        if (!is_known)
          add(other, i, linear, "weight-term", text_of_term(linear, "which no reader of weights knows"));
      }
    }
  }

  /// Adds all tensors of an embedding that no reader of its pieces knows: what is named as a part of the
  /// whole, and scales of the piece beside the scale that all pieces share.
  void add_beside_pieces(size_t i, std::string_view table) {
    const std::string below = std::string(table) + ".", piece = std::string(module_of(tensor(i).name));
    const auto find_scale = [&](const std::string& module) -> std::optional<size_t> {
      for (const ModulePart& part : module_parts()) {
        if (part.kind != PartKind::kScale) continue;
        if (const auto at = find_tensor(access_.tensors, fmt::format("{}.{}", module, part.name))) return at;
      }
      return std::nullopt;
    };
    const auto own = find_scale(piece), shared = find_scale(std::string(table));
    if (own && shared)
      add(*own, i, piece, "weight-term",
          text_of_term(piece, "a scale beside the scale that all pieces share"));
    if (!tables_.emplace(table).second) return;
    const Neighbours all = tensors_below(access_.tensors, below);
    for (size_t other = all.first; other < all.first + all.tensors.size(); ++other) {
      const std::string_view name = std::string_view(tensor(other).name).substr(below.size());
      const bool is_parameter = name.ends_with("weight") || name.ends_with("bias");
      if (is_parameter || !table_of_piece(module_of(tensor(other).name)).empty()) continue;
      const ModulePart& part = find_module_part(name);
      const bool is_term =
          part.kind == PartKind::kTerm && part.needs_codes && !changes_nothing(access_, other, part.harmless);
      if (part.kind != PartKind::kUnknown && !is_term) continue;
      add(other, i, std::string(table), "weight-term", text_of_term(table, part.effect), std::string(table));
    }
  }

  /// Adds codes that a file's __metadata__ describes.
  void add_described(size_t i, const WeightName& codes) {
    for (const Shard* shard : described_) {
      for (const DescribedCodes& described : shard->described) {
        const bool is_its = described.all ? shard == &access_.file(i) : described.has(codes.linear);
        if (!is_its) continue;
        add(i, i, codes.linear, "unsupported-format",
            fmt::format("expected codes that names, types and shapes describe, found {} in __metadata__, "
                        "which describes them differently and is not read",
                        json_quote_short(described.key)));
        found_.back().is_in_header = true;
        return;
      }
    }
  }

  /// Adds a stored shape that contradicts the codes. For INT4, the reader of its words checks the shape.
  void add_odd_shape(size_t i, const WeightName& codes) {
    const TensorInfo& t = tensor(i);
    const bool is_matrix = t.dtype != DType::kI32 && t.shape.size() == 2 && t.bytes() > 0;
    if (!is_matrix) return;
    const auto at = find_tensor(access_.tensors, codes.linear + ".weight_shape");
    if (!at || !is_readable(access_, *at)) return;
    const std::vector<int64_t> stored{t.shape[0], t.shape[1] * (t.dtype == DType::kU8 ? 2 : 1)};
    const std::vector<int64_t> stated = read_few_integers(tensor(*at), read_of(access_, *at));
    if (stated.size() != 2 || stated == stored) return;
    add(*at, i, codes.linear, "module-shape",
        fmt::format("expected N and K of {}, [{}, {}], found [{}, {}]", t.name, stored[0], stored[1],
                    stated[0], stated[1]));
  }

  const TensorAccess& access_;
  std::vector<WeightTerm> found_;
  std::set<std::string, std::less<>> incomplete_;  ///< modules that were found incomplete
  std::set<std::string, std::less<>> tables_;      ///< embeddings in pieces that were checked
  std::set<const Shard*> described_;               ///< files that describe codes
  std::vector<size_t> others_;                     ///< tensors that are no terms but parts of modules
  std::vector<std::pair<size_t, PartName>> lost_;  ///< terms without a linear
};

}  // namespace

TensorAccess access_to(const Checkpoint& c) {
  TensorAccess access{c.tensors(), [&c](size_t tensor, uint64_t offset, std::span<uint8_t> out) {
                        c.read(tensor, offset, out);
                      }};
  // A view has other codes than those that the headers of its files describe. The headers are checked by the
  // code that opens the files.
  if (!c.is_view()) access.file = [&c](size_t tensor) -> const Shard& { return c.shard_of(tensor); };
  access.config = &c.config_of_values();
  for (const Nvfp4Linear& m : c.nvfp4_modules()) {
    if (c.is_computed(m)) access.computed.push_back(m.codes);
  }
  std::sort(access.computed.begin(), access.computed.end());
  return access;
}

bool WeightTerm::concerns(std::string_view module) const {
  if (!scope) return module == linear;
  return scope->empty() || module == *scope || is_below(module, *scope);
}

bool changes_nothing(const TensorAccess& access, size_t tensor, Harmless harmless) {
  if (harmless == Harmless::kNever) return false;
  const TensorInfo& t = access.tensors[tensor];
  if (!is_readable(access, tensor) || t.bytes() == 0) return true;
  const ReadBytes read = read_of(access, tensor);
  return harmless == Harmless::kZeros ? is_all_zero(t, read) : is_in_order(t, read);
}

std::vector<WeightTerm> find_weight_terms(const TensorAccess& access) { return Terms(access).find(); }

std::vector<size_t> find_quantizer_state(std::span<const TensorInfo> tensors) {
  std::vector<size_t> found;
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (tensors[i].name.find("quantizer.") == std::string::npos) continue;  // as nearly always
    const auto name = parse_part_name(tensors[i].name);
    if (name && name->part->kind == PartKind::kState && !name->module.empty()) found.push_back(i);
  }
  return found;
}

}  // namespace twofour
