#include <fmt/format.h>

#include <algorithm>
#include <map>

#include "lib/base/findings/and_more.h"
#include "lib/lint/family/family_checks.h"
#include "lib/source/config/model_config.h"

// Parts of families that have rows of their own: drafts with names of their own, towers that read images, and
// tables of n-grams. They are compared with config.json as the model itself is.

namespace twofour {
namespace {

class PartLint {
 public:
  PartLint(FamilySubject& x, const FamilyPart& part, LintReporter& reporter)
      : x_(x), s_(x.input), part_(part), reporter_(reporter), sizes_(x.sizes) {
    // The config of a tower is beside that of the language model.
    if (part.is_tower) sizes_ = FamilySizes(*x.model.family, *x.model.config, &s_.config);
  }

  void run() {
    rows_ = family_rows({&part_.parameters, 1});
    count_ = *part_.count != '\0' ? sizes_.size(part_.count) : std::nullopt;
    if (part_.is_table) return check_table();
    // No published model has further drafts, so the kinds of their layers are unknown.
    if (is_one_of_several() && count_ != 1) return;
    FamilyTensors tensors = find_part_tensors(s_, x_.model, part_rows());
    if (tensors.tensors.empty()) return check_lost();
    if (part_.is_tower) check_tower(tensors);
    if (part_.is_tower && !s_.is_part) check_layers(tensors.layers);
    for (const int64_t layer : tensors.layers) {
      if (part_.is_tower || *part_.layers == '\0') continue;
      sizes_.set_class(layer, true, part_.mlp);
      sizes_.set_class(layer, false, part_.mixer);
    }
    const FamilyPresence there(std::move(tensors), x_.model);
    FamilySubject own{.input = s_,
                      .model = x_.model,
                      .there = there,
                      .is_own_class = x_.is_own_class,
                      .sizes = sizes_,
                      .blamed = x_.blamed,
                      .is_draft = !part_.is_tower};
    lint_family_sizes(own, reporter_);
    if (!s_.is_part && x_.is_own_class) lint_missing_tensors(own, reporter_);
    x_.blamed.insert(own.blamed.begin(), own.blamed.end());
    x_.facts.reported.insert(own.facts.reported.begin(), own.facts.reported.end());
  }

 private:
  bool is_one_of_several() const {
    return std::ranges::count_if(x_.model.family->parts, [&](const FamilyPart& other) {
             return *part_.layers != '\0' && std::string_view(other.layers) == part_.layers;
           }) > 1;
  }

  /// Returns the rows of the part and, if it repeats them, those of the model's layers under the part's
  /// names.
  PartRows part_rows() const {
    PartRows part{.rows = rows_};
    if (*part_.layers == '\0') return part;
    if (part_.repeats_layers) {
      for (FamilyRow row : sizes_.rows()) {
        if (!row.has_layer) continue;
        row.name.replace(0, row.name.find("#.") + 2, part_.layers);
        part.rows.push_back(std::move(row));
      }
    }
    part.first = sizes_.size(part_.first).value_or(0);
    if (is_one_of_several()) part.end = part.first + 1;
    if (!part_.is_tower) part.offset = sizes_.number("num_hidden_layers").value_or(0);
    return part;
  }

  /// Reports a tower that the config describes and that has no tensor.
  void check_lost() {
    if (!part_.is_tower || s_.is_part || !x_.model.is_nested || count_.value_or(0) < 1) return;
    const std::string prefix = rows_.empty() ? "" : rows_.front().name;
    std::string tower = prefix.substr(0, prefix.find(".patch_embed"));
    tower = tower.substr(0, tower.find(".vision_model"));
    reporter_.add(
        "tensor-missing", {"", tower},
        "expected the tower that vision_config describes (as in every model of {}), found no tensor of it",
        x_.model.model_type);
  }

  /// Checks names of a tower without "model.", and sizes of patches that no row gives.
  void check_tower(const FamilyTensors& tower) {
    constexpr std::string_view kModel = "model.";
    size_t bare = 0, first = 0;
    for (const FamilyTensor& t : tower.tensors) {
      const std::string& name = s_.tensors[t.tensor].name;
      const FamilyRow& row = tower.rows[static_cast<size_t>(t.row)];
      if (row.name.starts_with(kModel) && !name.starts_with(kModel) && bare++ == 0) first = t.tensor;
      const std::vector<int64_t>& shape = s_.tensors[t.tensor].shape;
      if (row.kind != ParameterKind::kTwoPatches || shape.size() != 5) continue;
      for (const auto& [key, found] : {std::pair{"vision_config.in_channels", shape[1]},
                                       std::pair{"vision_config.temporal_patch_size", shape[2]}}) {
        const auto configured = sizes_.number(key);
        if (!configured || *configured == found) continue;
        reporter_.add("config-shape", {"config.json", key}, "expected {} as {} has {}, found {}", found, name,
                      describe(s_.tensors[t.tensor]), *configured);
      }
    }
    if (bare == 0) return;
    const std::string& name = s_.tensors[first].name;
    reporter_.add("tensor-unknown", s_.at(first),
                  "expected {}{}, found a name that models of {} do not have{}", kModel, name,
                  x_.model.model_type, and_more(bare, ", and {} more like it"));
  }

  void check_layers(std::vector<int64_t>& layers) {
    if (layers.empty() || !count_) return;
    const std::string_view container = part_.layers;
    const std::string place(container.substr(0, container.find(".#")));
    const int64_t last = layers.back();
    int64_t missing = 0, first = -1;
    for (int64_t i = 0; i <= last; ++i) {
      if (std::ranges::binary_search(layers, i)) continue;
      if (missing++ == 0) first = i;
    }
    if (missing > 0)
      reporter_.add("layers-missing", {"", place}, "expected blocks 0 to {}, found {} missing, the first {}",
                    last, missing, first);
    if (last + 1 == *count_) return;
    const bool more = last + 1 > *count_;
    reporter_.add(more ? "layers-extra" : "layers-missing", {"config.json", part_.count},
                  "expected {} (the tensors of {}.{}), found {}", last + 1, place, last, *count_);
  }

  /// Checks that a table has all its pieces, and that all have one shape.
  void check_table() {
    if (!count_ || rows_.empty() || !s_.layout.empty()) return;
    for (const FamilyRow& row : rows_) {
      const size_t layer_at = row.name.find('#'), piece_at = row.name.rfind('#');
      if (layer_at == row.name.npos || piece_at == layer_at) continue;
      const std::string_view name = row.name;
      const std::string_view head = name.substr(0, layer_at),
                             middle = name.substr(layer_at + 1, piece_at - layer_at - 1);
      std::map<int64_t, std::map<int64_t, size_t>> pieces;  // tensors by layer and piece
      for (size_t i = 0; i < s_.tensors.size(); ++i) add_piece(i, head, middle, pieces);
      for (const auto& [layer, own] : pieces) check_pieces(layer, own, row);
      check_absent(row, head, middle, pieces);
    }
  }
  void add_piece(size_t tensor, std::string_view head, std::string_view middle,
                 std::map<int64_t, std::map<int64_t, size_t>>& pieces) const {
    const std::string name = text_model_name(s_.tensors[tensor].name);
    const size_t at = name.find(middle);
    if (!name.starts_with(head) || at == name.npos || leaf_of(name) != "weight") return;
    const auto layer = parse_index(std::string_view(name).substr(head.size(), at - head.size()));
    const size_t number = at + middle.size();
    const auto piece = parse_index(std::string_view(name).substr(number, name.find('.', number) - number));
    if (layer && piece) pieces[*layer].emplace(*piece, tensor);
  }
  void check_pieces(int64_t layer, const std::map<int64_t, size_t>& pieces, const FamilyRow& row) {
    const TensorInfo& first = s_.tensors[pieces.begin()->second];
    const std::string table(first.name.substr(0, first.name.rfind("shard_")));
    if (std::ssize(pieces) != *count_ && !s_.is_part) {
      int64_t lost = 0;
      while (pieces.contains(lost)) ++lost;
      const bool is_gap = lost <= pieces.rbegin()->first;
      if (is_gap || std::ssize(pieces) < *count_) {
        reporter_.add("tensor-missing", {"", fmt::format("{}shard_{}.weight", table, lost)},
                      "expected {} pieces of the table ({}), found {}", *count_, part_.count, pieces.size());
      } else {
        reporter_.add("config-shape", {"config.json", part_.count},
                      "expected {0}, the pieces of {2} in layer {1}, found {3}", pieces.size(), layer,
                      first.name, *count_);
      }
    }
    std::map<std::vector<int64_t>, std::pair<size_t, size_t>> shapes;  // count and first tensor of each shape
    for (const auto& [piece, tensor] : pieces) {
      auto& [count, at] = shapes[s_.tensors[tensor].shape];
      if (count++ == 0) at = tensor;
    }
    const auto usual =
        std::ranges::max_element(shapes, {}, [](const auto& shape) { return shape.second.first; });
    for (const auto& [shape, found] : shapes) {
      if (shape == usual->first || found.first * 2 > pieces.size()) continue;
      reporter_.add("config-shape", s_.at(found.second), "expected {} (as in {} other pieces), found {}",
                    describe(s_.tensors[usual->second.second]), usual->second.first,
                    describe(s_.tensors[found.second]));
    }
    // Each head has a prime number of rows, near the number in the config.
    const auto rows = sizes_.size(row.n), width = sizes_.size(row.k);
    const int64_t stored = usual->first.empty() ? 0 : usual->first[0];
    if (rows && usual->first.size() == 2 && (stored < *rows - *rows / 4 || stored > *rows + *rows / 4))
      reporter_.add("config-shape", s_.at(usual->second.second),
                    "expected about {} rows ({} of config.json), found {}", *rows, row.n,
                    describe(s_.tensors[usual->second.second]));
    if (!width || usual->first.size() != 2 || usual->first[1] == *width) return;
    reporter_.add("config-shape", s_.at(usual->second.second),
                  "expected {} columns ({} of config.json), found {}", *width, row.k,
                  describe(s_.tensors[usual->second.second]));
  }
  /// Reports layers that should have a table by the config and have no piece of one.
  void check_absent(const FamilyRow& row, std::string_view head, std::string_view middle,
                    const std::map<int64_t, std::map<int64_t, size_t>>& pieces) {
    if (s_.is_part || pieces.empty()) return;
    for (const int64_t layer : x_.there.layers()) {
      if (pieces.contains(layer) || !sizes_.holds(row.when, layer)) continue;
      reporter_.add("tensor-missing", {"", fmt::format("{}{}{}0.weight", head, layer, middle)},
                    "expected a table ({} for layer {}), found none", row.when, layer);
    }
  }

  FamilySubject& x_;
  const LintInput& s_;
  const FamilyPart& part_;
  LintReporter& reporter_;
  FamilySizes sizes_;
  std::vector<FamilyRow> rows_;
  std::optional<int64_t> count_;
};

}  // namespace

void lint_family_parts(FamilySubject& subject, LintReporter& reporter) {
  for (const FamilyPart& part : subject.model.family->parts) {
    if (!part.parameters.empty()) PartLint(subject, part, reporter).run();
  }
}

}  // namespace twofour
