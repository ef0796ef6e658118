#include "formats/families/family_rows.h"

#include <algorithm>
#include <set>
#include <utility>

#include "formats/error.h"
#include "formats/families/sizes.h"

namespace twofour {

namespace {

/// The names of the kinds, in the order of ParameterKind, with the number of sizes of a parameter of each
/// kind.
constexpr std::pair<std::string_view, size_t> kKinds[] = {
    {"linear", 2},  {"router", 2},      {"embedding", 2},    {"norm", 1},         {"convolution", 2},
    {"patches", 2}, {"two_patches", 2}, {"vector", 1},       {"matrix", 2},       {"numbers", 2},
    {"grid", 2},    {"row_stack", 2},   {"column_stack", 2}, {"stack_vector", 1}, {"any", 0}};

/// True if a number after `path` counts experts, heads or pieces, and not blocks of a layer.
bool counts_experts(std::string_view path) {
  return path.ends_with("experts.") || path.ends_with("norms.") || path.ends_with("_");
}

/// The bias text of parameters that never have a bias.
constexpr std::string_view kNoBias = "!";

void add_term(std::string& terms, std::string_view term) {
  if (!terms.empty() && !term.empty()) terms += ' ';
  terms += term;
}

/// The lines of a block, one after another.
class BlockReader {
 public:
  BlockReader(const FamilyBlock& block, std::vector<FamilyRow>& rows) : rows_(rows) {
    for (std::string_view rest = block.text; !rest.empty();) {
      const size_t end = std::min(rest.find('\n'), rest.size());
      line_ = rest.substr(0, end);
      rest.remove_prefix(std::min(end + 1, rest.size()));
      for (size_t at = 0; (at = line_.find('$', at)) != line_.npos;) {
        const size_t i = at + 1 < line_.size() ? static_cast<size_t>(line_[at + 1] - '1') : line_.npos;
        if (i >= block.words.size()) refuse("$1, $2 or $3");
        line_.replace(at, 2, block.words[i] != nullptr ? block.words[i] : "");
      }
      read_line();
    }
  }

 private:
  [[noreturn]] void refuse(const char* expected) const {
    throw Error("parameters of a family: expected " + std::string(expected) + ", found '" + line_ + "'");
  }

  void read_line() {
    std::vector<std::string_view> words;
    for_each_term(line_, [&](std::string_view word) { words.push_back(word); });
    if (words.empty() || words[0] == "//") return;
    if (words[0] == "if") {
      when_.clear();
      for (size_t i = 1; i < words.size(); ++i) add_term(when_, words[i]);
    } else if (words.size() == 3 && words[1] == "=") {
      if (words[0] == ".") {
        layer_ = words[2];
      } else {
        names_.emplace_back(words[0]);
        sizes_.emplace_back(words[2]);
      }
    } else {
      read_parameters(words);
    }
  }

  /// Reads one size of "[N, K]". The sizes begin at the third word.
  std::string read_size(const std::vector<std::string_view>& words, size_t i, bool first, bool last) const {
    std::string_view size = i < words.size() ? words[i] : std::string_view();
    if (first != size.starts_with('[') || !size.ends_with(last ? ']' : ',')) refuse("sizes as [N, K]");
    size.remove_suffix(1);
    if (first) size.remove_prefix(1);
    for (size_t at = 0; at < names_.size(); ++at) {
      if (size == names_[at]) size = sizes_[at];
    }
    bool is_size = !size.empty();
    for_each_factor(size, [&](std::string_view factor) {
      is_size = is_size && !factor.empty() && !(factor[0] >= 'A' && factor[0] <= 'Z') &&
                factor.find_first_of("-[]{},") == factor.npos;
    });
    if (!is_size) refuse("a size");
    return std::string(size);
  }

  void read_parameters(const std::vector<std::string_view>& words) {
    const auto of_word = [&](const auto& kind) { return words.size() > 1 && kind.first == words[1]; };
    const auto kind = std::find_if(std::begin(kKinds), std::end(kKinds), of_word);
    if (kind == std::end(kKinds)) refuse("NAME KIND [N, K]");
    FamilyRow row{.kind = static_cast<ParameterKind>(kind - std::begin(kKinds)), .when = when_};
    const size_t sizes = kind->second;
    if (sizes > 0) row.n = read_size(words, 2, true, sizes == 1);
    if (sizes > 1) row.k = read_size(words, 3, false, true);
    std::string_view bias = kNoBias;
    for (size_t i = 2 + sizes; i < words.size(); ++i) {
      if (words[i].starts_with('[') || words[i].ends_with(']')) refuse("as many sizes as its kind has");
      if (words[i] == "alias") {
        row.is_alias = true;  // no message shows the name
      } else if (words[i] == "bias" || words[i].starts_with("bias=")) {
        bias = words[i].substr(std::min<size_t>(5, words[i].size()));  // "" of "bias"
      } else {
        add_term(row.when, words[i]);
      }
    }
    add_names(std::string(words[0]), row, bias);
  }

  /// Adds a row for each name that the braces stand for.
  void add_names(const std::string& name, FamilyRow& row, std::string_view bias) {
    const size_t open = name.find('{');
    if (open == name.npos) {
      if (name.starts_with('.')) row.name = layer_;
      row.name += name;
      return add(row, bias);
    }
    const size_t close = name.find('}', open);
    if (close == name.npos) refuse("a } behind {");
    for (size_t at = open + 1; at <= close;) {
      const size_t end = std::min(name.find(',', at), close);
      const bool is_turned = name[at] == '~';
      std::string one = name;
      one.replace(open, close + 1 - open, name, at + is_turned, end - at - is_turned);
      if (is_turned) row.n.swap(row.k);
      add_names(one, row, bias);
      if (is_turned) row.n.swap(row.k);
      at = end + 1;
    }
  }

  void add(FamilyRow& row, std::string_view bias) {
    const size_t layer = row.name.find('#');
    row.has_layer = layer != row.name.npos;
    const size_t second = row.has_layer ? row.name.find('#', layer + 1) : row.name.npos;
    row.has_expert = second != row.name.npos && counts_experts(std::string_view(row.name).substr(0, second));
    FamilyRow& weight = rows_.emplace_back(row);
    if (row.kind <= ParameterKind::kTwoPatches) weight.name += ".weight";
    if (bias != kNoBias) {
      const bool may = !bias.empty() && row.when == "may";  // the weight must exist where the bias does
      FamilyRow& own = rows_.emplace_back(row);
      own.is_bias = true;
      own.kind = ParameterKind::kVector;
      own.name += ".bias";
      own.k.clear();
      if (may) own.when.clear();
      add_term(own.when, bias);
    }
    row.name.clear();
  }

  std::vector<FamilyRow>& rows_;
  std::string line_, when_;
  std::string layer_ = "model.layers.#";    ///< the module of names that begin with a dot
  std::vector<std::string> names_, sizes_;  ///< sizes that have a name
};

}  // namespace

std::vector<FamilyRow> family_rows(std::span<const FamilyBlock> blocks) {
  std::vector<FamilyRow> rows;
  for (const FamilyBlock& block : blocks) BlockReader(block, rows);
  return rows;
}

std::vector<std::string> family_switches(const std::vector<FamilyRow>& rows) {
  std::set<std::string> keys;
  for (const FamilyRow& row : rows) {
    for_each_term(row.when, [&](std::string_view term) {
      if (term.starts_with('!')) term = term.substr(1);
      if (!term.starts_with('@') && term != "may" && term.find_first_of("=:") == term.npos)
        keys.emplace(term);
    });
  }
  return {keys.begin(), keys.end()};
}

void FoldedName::fold(std::string_view name) {
  text.clear();
  numbers = {-1, -1};
  size_t count = 0;
  for (size_t at = 0; at <= name.size();) {
    const size_t end = std::min(name.find('.', at), name.size());
    const std::string_view part = name.substr(at, end - at);
    const bool digits = !part.empty() && part.size() < 10 &&
                        std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    if (at > 0) text += '.';
    if (digits) {
      if (count < numbers.size()) {
        int64_t value = 0;
        for (const char c : part) value = 10 * value + (c - '0');
        numbers[count++] = value;
      }
      text += '#';
    } else {
      text += part;
    }
    at = end + 1;
  }
}

std::string text_model_name(const std::string& name) {
  constexpr std::string_view kText = "language_model.";
  const size_t at = name.find(kText);
  if (at != 0 && (at == name.npos || name[at - 1] != '.')) return name;
  return name.substr(0, at) + name.substr(at + kText.size());
}

FamilyNames::FamilyNames(const std::vector<FamilyRow>& rows) {
  for (size_t i = 0; i < rows.size(); ++i) {
    const FamilyRow& row = rows[i];
    const auto add = [&](std::string name) { by_name_[std::move(name)].push_back(i); };
    add(row.name);
    if (row.is_stack()) add(row.name + "_blocks");
    if (row.kind > ParameterKind::kEmbedding) continue;
    const std::string module = row.name.substr(0, row.name.rfind('.'));
    add(module + ".weight_packed");
    add(module + ".qweight");
  }
}

std::span<const size_t> FamilyNames::find(const std::string& folded) const {
  constexpr std::string_view kModel = "model.";
  const std::string with = std::string(kModel).append(folded),
                    without = folded.starts_with(kModel) ? folded.substr(kModel.size()) : folded;
  for (const std::string* tried : {&folded, &with, &without}) {
    if (const auto at = by_name_.find(*tried); at != by_name_.end()) return at->second;
  }
  return {};
}

}  // namespace twofour
