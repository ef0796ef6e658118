#include "lib/look/metrics/moved_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "formats/module_names.h"
#include "lib/base/names/sibling_name.h"
#include "lib/look/metrics/moved_search.h"
#include "lib/look/metrics/moved_text.h"

namespace twofour {
namespace {

using Found = std::map<std::string, MovedMatrix>;

/// True for "P.gate_proj" and "P.up_proj" of one P.
bool are_gate_and_up(const std::string& x, const std::string& y) {
  constexpr std::pair<std::string_view, std::string_view> kPairs[] = {{"gate_proj", "up_proj"},
                                                                      {"w1", "w3"},
                                                                      {"gate_proj_weight", "up_proj_weight"},
                                                                      {"w1_weight", "v1_weight"}};
  const std::string_view a = leaf_of(x), b = leaf_of(y);
  return parent_of(x) == parent_of(y) && std::ranges::any_of(kPairs, [&](const auto& pair) {
           return (a == pair.first && b == pair.second) || (b == pair.first && a == pair.second);
         });
}

class Grouping {
 public:
  Grouping(const Matrices& a, Found found, const std::string& b_name) : found_(std::move(found)), b_(b_name) {
    for (const auto& [name, matrix] : a.all()) {
      const SiblingName at = sibling_name(name);
      ++of_layer_[{layers_of(name), at.layer}];
      if (at.expert >= 0) ++experts_[experts_of(name)][at.expert];
      if (at.layer >= 0) layers_[layers_of(name)].insert(at.layer);
    }
  }

  std::vector<MovedWeights> run() {
    group_experts();
    group_layers();
    group_gates();
    group_rest();
    std::ranges::sort(moved_, [](const MovedWeights& x, const MovedWeights& y) {
      return x.name == y.name ? x.how < y.how : natural_less(x.name, y.name);
    });
    return std::move(moved_);
  }

 private:
  /// The numbers of the matches of `name` whose names differ from it only in the expert, or only in the
  /// layer.
  std::set<int64_t> numbers_of(const std::string& name, const MovedMatrix& m, bool expert) const {
    std::set<int64_t> numbers;
    const SiblingName own = sibling_name(name);
    if (m.how != Moved::kOther || (expert ? own.expert : own.layer) < 0) return numbers;
    for (const std::string& other : m.equals) {
      const SiblingName at = sibling_name(other);
      if (at.kind != own.kind || (expert ? at.layer != own.layer : at.expert != own.expert)) continue;
      numbers.insert(expert ? at.expert : at.layer);
    }
    return numbers;
  }

  /// Adds the matches that all of `names` have in common to `numbers`. Returns true if there are any. Then
  /// the names need no other explanation.
  bool agree(const std::vector<std::string>& names, bool expert, int64_t own, MovedNumbers& numbers) const {
    std::set<int64_t> common;
    for (size_t i = 0; i < names.size(); ++i) {
      const std::set<int64_t> some = numbers_of(names[i], found_.at(names[i]), expert);
      if (i == 0) common = some;
      std::erase_if(common, [&](int64_t n) { return !some.contains(n); });
    }
    if (common.empty()) return false;
    numbers[own] = std::move(common);
    return true;
  }

  void group_experts() {
    std::map<std::string, std::map<int64_t, std::vector<std::string>>> blocks;
    for (const auto& [name, m] : found_) {
      if (!numbers_of(name, m, true).empty())
        blocks[experts_of(name)][sibling_name(name).expert].push_back(name);
    }
    for (const auto& [block, experts] : blocks) {
      MovedNumbers numbers;
      std::vector<std::string> done;
      bool whole = true;  // all matrices of each expert moved
      for (const auto& [expert, names] : experts) {
        const size_t all = experts_.at(block).at(expert);
        if (2 * names.size() <= all) continue;  // a single matrix
        whole = whole && names.size() == all;
        if (agree(names, true, expert, numbers)) done.insert(done.end(), names.begin(), names.end());
      }
      if (numbers.empty()) continue;
      const auto count = static_cast<int64_t>(experts_.at(block).size());
      MovedWeights moved{Moved::kExperts, block, describe_numbers("expert", numbers, count, b_), {}};
      const auto router = router_of(block, numbers);
      if (router && whole) {
        moved.how = Moved::kRenumbered;
        moved.text += fmt::format("; the rows of {} are in the same order", *router);
        found_.erase(*router);
      }
      add_pairs(done, numbers, true, moved);
      moved_.push_back(std::move(moved));
    }
  }

  /// Finds the router whose rows moved with the experts. The row of each moved expert must equal the row of
  /// its match, and all other rows must be unchanged.
  std::optional<std::string> router_of(const std::string& block, const MovedNumbers& numbers) const {
    const std::string parent(module_of(block));
    for (const std::string_view leaf : router_paths()) {
      const auto at = found_.find(fmt::format("{}.{}", parent, leaf));
      if (at == found_.end() || at->second.how != Moved::kRows) continue;
      const MovedMatrix& m = at->second;
      if (static_cast<int64_t>(m.lines.size()) != m.count) continue;
      bool same = true;
      for (size_t i = 0; i < m.lines.size() && same; ++i) {
        const auto moved = numbers.find(m.lines[i]);
        same = moved == numbers.end() ? m.places[i] == m.lines[i] : moved->second.contains(m.places[i]);
      }
      if (same) return at->first;
    }
    return std::nullopt;
  }

  void group_layers() {
    std::map<std::string, std::map<int64_t, std::vector<std::string>>> models;
    for (const auto& [name, m] : found_) {
      if (!numbers_of(name, m, false).empty())
        models[layers_of(name)][sibling_name(name).layer].push_back(name);
    }
    for (const auto& [prefix, layers] : models) {
      MovedNumbers numbers;
      std::vector<std::string> done;
      for (const auto& [layer, names] : layers) {
        // Most matrices of the layer suffice, since a matrix may be too small to match, or equal in A and B.
        if (2 * names.size() <= of_layer_.at({prefix, layer})) continue;
        if (agree(names, false, layer, numbers)) done.insert(done.end(), names.begin(), names.end());
      }
      if (numbers.empty()) continue;
      const auto count = static_cast<int64_t>(layers_.at(prefix).size());
      MovedWeights moved{Moved::kLayers,
                         fmt::format("{}.{}", prefix, numbers.begin()->first),
                         describe_numbers("layer", numbers, count, b_),
                         {}};
      add_pairs(done, numbers, false, moved);
      moved_.push_back(std::move(moved));
    }
  }

  /// Removes the names in `done` from the remaining names, and adds a pair to `moved` for each of them.
  void add_pairs(const std::vector<std::string>& done, const MovedNumbers& numbers, bool expert,
                 MovedWeights& moved) {
    const auto chosen = choose_numbers(numbers);
    for (const std::string& name : done) {
      const SiblingName own = sibling_name(name);
      const int64_t number = chosen.at(expert ? own.expert : own.layer);
      const auto other = std::ranges::find_if(found_.at(name).equals, [&](const std::string& text) {
        const SiblingName at = sibling_name(text);
        return at.kind == own.kind && (expert ? at.expert : at.layer) == number;
      });
      if (other != found_.at(name).equals.end()) moved.pairs.emplace_back(name, *other);
      found_.erase(name);
    }
  }

  void group_gates() {
    std::map<std::string, std::vector<std::pair<std::string, std::string>>> layers;
    for (const auto& [name, m] : found_) {
      if (m.how != Moved::kOther) continue;
      const auto other =
          std::ranges::find_if(m.equals, [&](const std::string& x) { return are_gate_and_up(name, x); });
      if (other != m.equals.end())
        layers[sibling_name(name).expert >= 0 ? experts_of(name) : std::string(module_of(name))].emplace_back(
            name, *other);
    }
    for (auto& [block, pairs] : layers) {
      MovedWeights moved{Moved::kGateUp, pairs[0].first, "", std::move(pairs)};
      moved.text = fmt::format("equals {} of {}", leaf_of(moved.pairs[0].second), b_);
      std::set<int64_t> experts;
      for (const auto& [own, other] : moved.pairs) experts.insert(sibling_name(own).expert);
      if (moved.pairs.size() > experts.size()) moved.text += ", and the reverse";
      if (experts.size() > 1)
        moved.text += fmt::format(", in {} of {} experts", experts.size(), experts_.at(block).size());
      for (const auto& [own, other] : moved.pairs) found_.erase(own);
      moved_.push_back(std::move(moved));
    }
  }

  /// Adds the remaining names one by one. A text that applies to several experts is added only once.
  void group_rest() {
    std::map<std::tuple<int, std::string, int64_t, std::string>, std::vector<std::string>> alike;
    for (const auto& [name, m] : found_) {
      const SiblingName at = sibling_name(name);
      alike[{static_cast<int>(how_of(name, m)), at.kind, at.layer, describe_matrix(m, b_)}].push_back(name);
    }
    for (const auto& [key, names] : alike) {
      MovedWeights moved{static_cast<Moved>(std::get<0>(key)), names[0], std::get<3>(key), {}};
      moved.factor = found_.at(names[0]).factor;
      if (names.size() > 1)
        moved.text +=
            fmt::format(", in {} of {} experts", names.size(), experts_.at(experts_of(names[0])).size());
      for (const std::string& name : names) {
        for (const std::string& other : found_.at(name).equals) moved.pairs.emplace_back(name, other);
      }
      moved_.push_back(std::move(moved));
    }
  }

  static Moved how_of(const std::string& name, const MovedMatrix& m) {
    const std::string_view leaf = leaf_of(name);
    const bool both = leaf == "gate_up_proj" || leaf == "w13" || leaf == "gate_and_up_proj";
    if (m.how != Moved::kRows || !both) return m.how;
    for (size_t i = 0; i < m.lines.size(); ++i) {
      if (m.places[i] != (m.lines[i] + m.count / 2) % m.count) return m.how;
    }
    return Moved::kGateUp;
  }

  Found found_;
  const std::string& b_;
  std::map<std::pair<std::string, int64_t>, size_t> of_layer_;  ///< matrices of a layer
  std::map<std::string, std::map<int64_t, size_t>>
      experts_;  ///< matrices by number, by the part of the name before the number
  std::map<std::string, std::set<int64_t>> layers_;  ///< layer numbers, by the same part
  std::vector<MovedWeights> moved_;
};

/// The bytes of each slice of a tensor along its first dimension. Empty if the other checkpoint has a
/// different tensor.
std::vector<std::vector<uint8_t>> slices_of(const Checkpoint& c, size_t tensor) {
  const TensorInfo& t = c.tensors()[tensor];
  const auto count = static_cast<size_t>(t.shape[0]);
  std::vector<std::vector<uint8_t>> slices(count, std::vector<uint8_t>(t.bytes() / count));
  for (size_t i = 0; i < count; ++i) c.read(tensor, i * slices[i].size(), slices[i]);
  return slices;
}

/// Withdraws the statement that the model computes the same if other tensors that are indexed by expert did
/// not move. These are biases of the router, of the choice of experts and of stacks.
void check_renumbered(const Checkpoint& a, const Checkpoint& b, const std::string& b_name,
                      MovedWeights& moved) {
  const std::string parent(module_of(moved.name));
  std::map<size_t, size_t> places;
  for (const auto& [own, other] : moved.pairs)
    places[static_cast<size_t>(sibling_name(own).expert)] = static_cast<size_t>(sibling_name(other).expert);
  constexpr uint64_t kMost = 64u << 20;  // a larger tensor is not a bias
  for (size_t t = 0; t < a.tensors().size(); ++t) {
    const TensorInfo& own = a.tensors()[t];
    if (!own.name.starts_with(parent + ".") || !own.name.ends_with("bias") || own.shape.empty()) continue;
    if (own.shape[0] <= 1 || own.bytes() > kMost || own.name.find("shared") != own.name.npos) continue;
    const auto other = b.find(own.name);
    if (!other || b.tensors()[*other].shape != own.shape || b.tensors()[*other].dtype != own.dtype) continue;
    const auto x = slices_of(a, t), y = slices_of(b, *other);
    if (x.size() <= places.rbegin()->first) continue;  // not by expert
    for (size_t i = 0; i < x.size(); ++i) {
      const auto place = places.find(i);
      if (x[i] == y[place == places.end() ? i : place->second]) continue;
      moved.how = Moved::kExperts;
      moved.text += fmt::format("; {} is not, as {} has another for expert {}", own.name, b_name, i);
      return;
    }
  }
}

}  // namespace

const char* moved_name(Moved how) {
  constexpr std::array<const char*, 12> kNames = {"experts", "renumbered-experts",
                                                  "layers",  "gate-up",
                                                  "other",   "rows",
                                                  "columns", "nibbles",
                                                  "signs",   "scales",
                                                  "factor",  "transposed"};
  return kNames[static_cast<size_t>(how)];
}

MovedReport find_moved(const Matrices& a, const Matrices& b, const std::string& b_name,
                       const std::map<std::string, int64_t>* differ) {
  MovedReport report;
  Found found = search_moved(a, b, differ, report.compared, report.unlike);
  report.moved = Grouping(a, std::move(found), b_name).run();
  for (MovedWeights& moved : report.moved) {
    if (moved.how == Moved::kRenumbered) check_renumbered(a.checkpoint(), b.checkpoint(), b_name, moved);
  }
  return report;
}

}  // namespace twofour
