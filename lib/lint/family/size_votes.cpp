#include "lib/lint/family/size_votes.h"

#include <algorithm>
#include <optional>

namespace twofour {

void SizeVotes::add(std::string_view expression, int64_t found, size_t tensor, size_t weight) {
  if (expression == kUnconfiguredSize) return;
  auto at = all_.find(expression);
  if (at == all_.end()) at = all_.emplace(std::string(expression), Votes{}).first;
  Vote& vote = at->second[found];
  if (vote.count == 0) vote.first = tensor;
  vote.count += weight;
}

namespace {

constexpr int kMostKeys = 8;  ///< a config with more wrong keys is of another model

/// Returns the size that more than half of all tensors have, if there is one.
std::optional<int64_t> most_common(const SizeVotes::Votes& votes) {
  size_t all = 0, most = 0;
  int64_t size = 0;
  for (const auto& [found, vote] : votes) {
    all += vote.count;
    if (vote.count <= most) continue;
    most = vote.count;
    size = found;
  }
  return 2 * most > all ? std::optional(size) : std::nullopt;
}

struct Expression {
  const std::string* text;
  int64_t found;
  const SizeVotes::Vote* vote;
};

/// Returns the number of expressions whose size is not that of most tensors.
size_t count_wrong(const std::vector<Expression>& all, const FamilySizes& sizes) {
  size_t count = 0;
  for (const Expression& e : all) count += sizes.size(*e.text) == e.found ? 0 : 1;
  return count;
}

/// Returns values of a key for which an expression gives the size that was found. The expression may be a
/// product, a sum or a quotient.
std::vector<int64_t> solve(const Expression& e, const std::string& key, const FamilySizes& sizes) {
  std::vector<int64_t> values;
  FamilySizes tried = sizes;
  const int64_t old = std::max<int64_t>(sizes.number(key).value_or(1), 1);
  tried.set(key, old);
  const auto at_old = tried.size(*e.text);
  tried.set(key, 2 * old);
  const auto at_double = tried.size(*e.text);
  if (at_old && at_double && *at_double > *at_old) {
    const int64_t step = *at_double - *at_old;  // growth of the size if the key grows by `old`
    const __int128 wanted = static_cast<__int128>(e.found - *at_old) * old;
    if (wanted % step == 0) values.push_back(old + static_cast<int64_t>(wanted / step));
  }
  if (at_old && *at_old > 0) {
    const __int128 wanted = static_cast<__int128>(old) * e.found;
    if (wanted % *at_old == 0) values.push_back(static_cast<int64_t>(wanted / *at_old));
    // If the key is a divisor, a smaller key gives a larger size.
    const __int128 divided = static_cast<__int128>(old) * *at_old;
    if (e.found > 0 && divided % e.found == 0) values.push_back(static_cast<int64_t>(divided / e.found));
  }
  std::erase_if(values, [](int64_t v) { return v <= 0; });
  return values;
}

}  // namespace

std::vector<WrongKey> find_wrong_keys(const SizeVotes& votes, FamilySizes& sizes) {
  std::vector<Expression> all;
  for (const auto& [text, found] : votes.all()) {
    if (const auto size = most_common(found)) all.push_back({&text, *size, &found.at(*size)});
  }
  std::vector<WrongKey> wrong;
  size_t left = count_wrong(all, sizes);
  while (left > 0 && wrong.size() < kMostKeys) {
    std::optional<WrongKey> best;
    size_t best_left = left;
    for (const Expression& e : all) {
      if (sizes.size(*e.text) == e.found) continue;
      for (const std::string& key : sizes.keys(*e.text)) {
        for (const int64_t value : solve(e, key, sizes)) {
          FamilySizes tried = sizes;
          tried.set(key, value);
          const size_t after = count_wrong(all, tried);
          if (best && after == best_left && key != best->key &&
              std::ranges::none_of(best->others, [&](auto& other) { return other.first == key; }))
            best->others.emplace_back(key, value);
          if (after >= best_left) continue;
          best_left = after;
          best = WrongKey{key, sizes.number(key), value, e.vote->count, e.vote->first, *e.text};
        }
      }
    }
    if (!best) break;
    // Counts the tensors of all expressions that the new value corrects.
    FamilySizes tried = sizes;
    tried.set(best->key, best->found);
    best->tensors = 0;
    for (const Expression& e : all) {
      if (sizes.size(*e.text) != e.found && tried.size(*e.text) == e.found) best->tensors += e.vote->count;
    }
    sizes = std::move(tried);
    left = best_left;
    wrong.push_back(std::move(*best));
  }
  return wrong;
}

}  // namespace twofour
