#include "lib/metrics/moved_weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>

#include "lib/metrics/moved_search.h"
#include "lib/names/sibling_name.h"

namespace twofour {
namespace {

using Found = std::map<std::string, MovedMatrix>;
constexpr size_t kListed = 8;  ///< experts, layers or lines that a text lists

/// Number in A to those of B that it equals; several where B has them alike.
using Numbers = std::map<int64_t, std::set<int64_t>>;

/// One number each, so that as few as can be share one: its own where B has that alike.
std::map<int64_t, int64_t> choose(const Numbers& numbers) {
  std::map<int64_t, int64_t> chosen;
  std::set<int64_t> taken;
  for (const auto& [own, others] : numbers) {
    const auto free = std::ranges::find_if(others, [&](int64_t n) { return !taken.contains(n); });
    chosen[own] = free != others.end() ? *free : *others.begin();
    taken.insert(chosen[own]);
  }
  return chosen;
}

std::string plural(const char* what, const std::set<int64_t>& numbers) {
  return numbers.size() == 1 ? fmt::format("{} {}", what, *numbers.begin())
                             : fmt::format("{}s {}, which are alike", what, fmt::join(numbers, " and "));
}

/// "expert 3 equals expert 8 of B, expert 8 equals expert 3 of B", or the rule that all follow.
std::string describe_numbers(const char* what, const Numbers& numbers, int64_t count, const std::string& b) {
  const auto chosen = choose(numbers);
  if (static_cast<int64_t>(chosen.size()) == count && count > 2) {
    const int64_t shift = (chosen.at(0) + count) % count;
    const auto all = [&](auto place) {
      return std::ranges::all_of(chosen, [&](const auto& pair) { return pair.second == place(pair.first); });
    };
    if (all([&](int64_t n) { return count - 1 - n; }))
      return fmt::format("all {} {}s are in reverse order: {} 0 equals {} {} of {}, {} {} equals {} 0", count,
                         what, what, what, count - 1, b, what, count - 1, what);
    if (all([&](int64_t n) { return (n + shift) % count; }))
      return fmt::format("all {} {}s are turned by {}: {} 0 equals {} {} of {}, and so on", count, what,
                         shift, what, what, shift, b);
  }
  std::vector<std::string> parts;
  for (const auto& [own, others] : numbers) {
    if (parts.size() == kListed) break;
    parts.push_back(fmt::format("{} {} equals {} of {}", what, own, plural(what, others), b));
  }
  std::string text = fmt::format("{}", fmt::join(parts, ", "));
  if (numbers.size() > parts.size()) text += fmt::format(", and {} more", numbers.size() - parts.size());
  return text;
}

/// The rule that lines follow, or some of them.
std::string describe_lines(const char* what, const MovedMatrix& m, const std::string& b) {
  const int64_t n = m.count;
  const auto follows = [&](auto place) {
    for (size_t i = 0; i < m.lines.size(); ++i) {
      if (place(m.lines[i]) != m.places[i]) return false;
    }
    return true;
  };
  const int64_t shift = m.lines.empty() ? 0 : (m.places[0] - m.lines[0] + n) % n;
  if (n % 2 == 0 && follows([&](int64_t i) { return (i + n / 2) % n; }))
    return fmt::format("the halves of its {} {} are exchanged", n, what);
  if (follows([&](int64_t i) { return (i + shift) % n; }))
    return fmt::format("its {} {} are turned by {}", n, what, shift);
  if (follows([&](int64_t i) { return n - 1 - i; }))
    return fmt::format("its {} {} are in reverse order", n, what);
  if (follows([](int64_t i) { return i ^ 1; }))
    return fmt::format("neighbours among its {} {} are exchanged", n, what);
  // The two halves of each head, as rotary embeddings pair its rows, or of all: one after the other, or in
  // turn.
  std::set<int64_t> sizes = {n};
  for (const int64_t head : {32, 64, 80, 96, 128, 192, 256}) sizes.insert(head);
  for (const int64_t size : sizes) {
    if (size > n || n % size != 0 || size % 2 != 0) continue;
    const auto in_turn = [&](int64_t i) { return i / size * size + i % 2 * (size / 2) + i % size / 2; };
    const auto apart = [&](int64_t i) {
      return i / size * size + (i % size < size / 2 ? 2 * (i % size) : 2 * (i % size - size / 2) + 1);
    };
    const std::string whole = size == n ? "" : fmt::format(" of each {}", size);
    if (follows(in_turn)) return fmt::format("its {} {} have the halves{} in turn", n, what, whole);
    if (follows(apart)) return fmt::format("its {} {} have even and odd ones{} apart", n, what, whole);
  }
  std::vector<std::string> parts;
  for (size_t i = 0; i < m.lines.size() && parts.size() < 4; ++i) {
    if (m.lines[i] != m.places[i]) parts.push_back(fmt::format("{} is {} of {}", m.lines[i], m.places[i], b));
  }
  return fmt::format("its {} {} are in another order: {}", n, what, fmt::join(parts, ", "));
}

/// "P.gate_proj" and "P.up_proj" of one P.
bool are_gate_and_up(const std::string& x, const std::string& y) {
  constexpr std::pair<std::string_view, std::string_view> kPairs[] = {{"gate_proj", "up_proj"},
                                                                      {"w1", "w3"},
                                                                      {"gate_proj_weight", "up_proj_weight"},
                                                                      {"w1_weight", "v1_weight"}};
  const auto split = [](const std::string& name) {
    const size_t dot = name.rfind('.') + 1;
    return std::pair(name.substr(0, dot), name.substr(dot));
  };
  const auto [p, a] = split(x);
  const auto [q, b] = split(y);
  return p == q && std::ranges::any_of(kPairs, [&](const auto& pair) {
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
  /// Targets of `name` of which only the expert or only the layer is another.
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

  /// Adds to `numbers` what all of `names` agree on; the names are then done.
  bool agree(const std::vector<std::string>& names, bool expert, int64_t own, Numbers& numbers) const {
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
      Numbers numbers;
      std::vector<std::string> done;
      bool whole = true;  // all matrices of each expert went
      for (const auto& [expert, names] : experts) {
        const size_t all = experts_.at(block).at(expert);
        if (2 * names.size() <= all) continue;  // a matrix for itself
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

  /// The router whose rows went with the experts: each moved expert's row is that of what it equals, and all
  /// others are their own.
  std::optional<std::string> router_of(const std::string& block, const Numbers& numbers) const {
    const std::string parent = block.substr(0, block.rfind('.'));
    for (const char* leaf : {"gate", "router", "router.layer", "gate.wg"}) {
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
      Numbers numbers;
      std::vector<std::string> done;
      for (const auto& [layer, names] : layers) {
        // Most of the layer: a matrix may be too small to tell, or alike in both.
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

  /// Takes `done` out of what is left to say, name by name.
  void add_pairs(const std::vector<std::string>& done, const Numbers& numbers, bool expert,
                 MovedWeights& moved) {
    const auto chosen = choose(numbers);
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
        layers[sibling_name(name).expert >= 0 ? experts_of(name) : name.substr(0, name.rfind('.'))]
            .emplace_back(name, *other);
    }
    for (auto& [block, pairs] : layers) {
      MovedWeights moved{Moved::kGateUp, pairs[0].first, "", std::move(pairs)};
      const size_t dot = moved.pairs[0].second.rfind('.');
      moved.text = fmt::format("equals {} of {}", moved.pairs[0].second.substr(dot + 1), b_);
      std::set<int64_t> experts;
      for (const auto& [own, other] : moved.pairs) experts.insert(sibling_name(own).expert);
      if (moved.pairs.size() > experts.size()) moved.text += ", and the reverse";
      if (experts.size() > 1)
        moved.text += fmt::format(", in {} of {} experts", experts.size(), experts_.at(block).size());
      for (const auto& [own, other] : moved.pairs) found_.erase(own);
      moved_.push_back(std::move(moved));
    }
  }

  /// One by one, but what is said of several experts once.
  void group_rest() {
    std::map<std::tuple<int, std::string, int64_t, std::string>, std::vector<std::string>> alike;
    for (const auto& [name, m] : found_) {
      const SiblingName at = sibling_name(name);
      alike[{static_cast<int>(how_of(name, m)), at.kind, at.layer, text_of(m)}].push_back(name);
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
    const std::string_view leaf = std::string_view(name).substr(name.rfind('.') + 1);
    const bool both = leaf == "gate_up_proj" || leaf == "w13" || leaf == "gate_and_up_proj";
    if (m.how != Moved::kRows || !both) return m.how;
    for (size_t i = 0; i < m.lines.size(); ++i) {
      if (m.places[i] != (m.lines[i] + m.count / 2) % m.count) return m.how;
    }
    return Moved::kGateUp;
  }

  std::string text_of(const MovedMatrix& m) const {
    switch (m.how) {
      case Moved::kRows:
        return describe_lines("rows", m, b_);
      case Moved::kColumns:
        return describe_lines("columns", m, b_);
      case Moved::kNibbles:
        return "the two codes of each byte are exchanged";
      case Moved::kScales:
        return "the signs are, the sizes of blocks are not: scales in another order, or of another matrix";
      case Moved::kFactor:
        return fmt::format("its numbers are {:.4g} times those of {}", m.factor, b_);
      case Moved::kTransposed:
        return fmt::format("its rows are the columns of {}", b_);
      case Moved::kSigns:
        return m.lines.size() == m.places.size()
                   ? fmt::format("signs of all {} rows are turned", m.count)
                   : fmt::format("signs are turned, in {} of {} rows that were looked at", m.lines.size(),
                                 m.places.size());
      default:
        return fmt::format("equals {} of {}", fmt::join(m.equals, ", and "), b_);
    }
  }

  Found found_;
  const std::string& b_;
  std::map<std::pair<std::string, int64_t>, size_t> of_layer_;  ///< matrices of a layer
  std::map<std::string, std::map<int64_t, size_t>>
      experts_;                                      ///< by what comes before their numbers: matrices
  std::map<std::string, std::set<int64_t>> layers_;  ///< likewise
  std::vector<MovedWeights> moved_;
};

/// The numbers of a tensor's first dimension, as bytes; empty where the other checkpoint has another tensor.
std::vector<std::vector<uint8_t>> slices_of(const Checkpoint& c, size_t tensor) {
  const TensorInfo& t = c.tensors()[tensor];
  const auto count = static_cast<size_t>(t.shape[0]);
  std::vector<std::vector<uint8_t>> slices(count, std::vector<uint8_t>(t.bytes() / count));
  for (size_t i = 0; i < count; ++i) c.read(tensor, i * slices[i].size(), slices[i]);
  return slices;
}

/// Takes back that a model computes what it did where something else that its experts have by number stayed:
/// biases of the router, of the choice of experts, of stacks.
void check_renumbered(const Checkpoint& a, const Checkpoint& b, const std::string& b_name,
                      MovedWeights& moved) {
  const std::string parent = moved.name.substr(0, moved.name.rfind('.'));
  std::map<size_t, size_t> places;
  for (const auto& [own, other] : moved.pairs)
    places[static_cast<size_t>(sibling_name(own).expert)] = static_cast<size_t>(sibling_name(other).expert);
  constexpr uint64_t kMost = 64u << 20;  // what is larger is no bias
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
