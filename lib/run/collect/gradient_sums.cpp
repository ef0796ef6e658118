#include "lib/run/collect/gradient_sums.h"

#include <algorithm>
#include <cmath>

#include "lib/base/threads/parallel.h"

namespace twofour {
namespace {

/// Adds the squares of each column of rows [rows, n], in double. A head may have more sums than outputs.
void add_squares(std::span<const float> rows, size_t n, std::vector<double>& sums) {
  constexpr size_t kColumns = 256;
  parallel_for((n + kColumns - 1) / kColumns, [&](size_t strip) {
    const size_t begin = strip * kColumns, end = std::min(n, begin + kColumns);
    for (size_t row = 0; row < rows.size(); row += n) {
      for (size_t j = begin; j < end; ++j) {
        const auto v = static_cast<double>(rows[row + j]);
        sums[j] += v * v;
      }
    }
  });
}

std::vector<float> roots_of(std::span<const double> weights) {
  std::vector<float> roots;
  for (const double w : weights) roots.push_back(static_cast<float>(std::sqrt(w)));
  return roots;
}

bool is_shared_fisher(const std::vector<InputGroup>& groups, const GradientRequest& request) {
  uint64_t bytes = 0;
  for (const InputGroup& g : groups)
    bytes += g.expert < 0 ? 0 : sizeof(float) * static_cast<uint64_t>(g.k) * static_cast<uint64_t>(g.k);
  return bytes > request.expert_bytes;
}

}  // namespace

std::vector<double> mean_squared_gradients(std::span<const OutputGradient> outputs, size_t rows) {
  std::vector<double> e(rows);
  size_t all = 0;
  for (const OutputGradient& o : outputs) {
    const size_t n = o.dy.size() / std::max<size_t>(1, rows);
    all += n;
    parallel_for(rows, [&](size_t row) {
      double sum = 0;
      for (const float v : o.dy.subspan(row * n, n)) sum += static_cast<double>(v) * static_cast<double>(v);
      e[row] += sum;
    });
  }
  for (double& v : e) v /= static_cast<double>(all);
  return e;
}

bool is_input_of_experts(const InputGroup& group) { return group.expert < 0 && !group.block.empty(); }

std::vector<PlannedEntry> gradient_entries(const Decoder& model, const std::vector<InputGroup>& groups,
                                           const GradientRequest& request, std::vector<size_t>& of_groups) {
  std::vector<PlannedEntry> entries;
  PlannedEntry shared;
  of_groups.clear();
  const auto add = [&](PlannedEntry e, size_t group) {
    e.has_fisher = request.fisher;
    for (const std::string& linear : e.linears) {
      // The shared entry of downs has linears of other entries.
      if (request.fisher && group != SIZE_MAX) e.rows.push_back({linear, model.rows_of_linear(linear)});
    }
    entries.push_back(std::move(e));
    of_groups.push_back(group);
  };
  for (size_t g = 0; g < groups.size(); ++g) {
    const InputGroup& group = groups[g];
    if (is_input_of_experts(group)) {
      // Guided sums count each token for each of its experts already.
      add({group.linears.front(), group.linears, group.k, request.guided ? 1 : group.times}, g);
      continue;
    }
    for (const std::string& linear : group.linears) add({linear, {linear}, group.k}, g);
    if (group.expert < 0) continue;
    shared.name = group.block + ".down_proj";
    shared.k = group.k;
    shared.linears.push_back(group.linears.front());
  }
  if (!shared.linears.empty()) add(std::move(shared), SIZE_MAX);
  return entries;
}

GradientSums::GradientSums(const Decoder& model, const std::vector<InputGroup>& groups,
                           const GradientRequest& request, DeviceSums* device)
    : groups_(groups),
      request_(request),
      entries_(gradient_entries(model, groups, request, of_groups_)),
      sums_(entries_.size()),
      shares_fisher_(is_shared_fisher(groups, request)) {
  for (size_t i = 0; i < entries_.size(); ++i) {
    sums_[i].fisher.device = sums_[i].guided.device = device;
    for (const PlannedEntry::Target& t : entries_[i].rows) rows_[t.linear].resize(static_cast<size_t>(t.n));
    if (of_groups_[i] == SIZE_MAX) continue;
    for (const std::string& linear : entries_[i].linears) entry_of_[linear] = i;
  }
}

void GradientSums::begin_batch(size_t rows) {
  expert_x_.clear();
  expert_e_.assign(rows, 0.0);
  expert_roots_.assign(rows, 0.0);
  expert_rows_ = 0;
}

void GradientSums::add_expert_input(std::span<const float> x, std::span<const int64_t> tokens,
                                    std::span<const double> e) {
  const size_t k = x.size() / tokens.size();
  expert_x_.resize(expert_e_.size() * k);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto token = static_cast<size_t>(tokens[i]);
    std::copy_n(x.data() + i * k, k, expert_x_.data() + token * k);
    expert_e_[token] += e[i];
    expert_roots_[token] += std::sqrt(e[i]);
  }
  expert_rows_ += static_cast<int64_t>(tokens.size());
}

void GradientSums::see_gradient(size_t group, std::span<const float> x, std::span<const int64_t> tokens,
                                std::span<const OutputGradient> outputs) {
  const InputGroup& own = groups_[group == kHead ? 0 : group];
  const size_t rows = x.size() / static_cast<size_t>(own.k);
  const std::vector<double> e = mean_squared_gradients(outputs, rows);
  for (const OutputGradient& o : outputs) {
    if (request_.fisher && rows > 0) add_squares(o.dy, o.dy.size() / rows, rows_.at(o.linear));
  }
  EntryGradients& sums = sums_[entry_of_.at(outputs.front().linear)];
  sums.tokens += static_cast<int64_t>(rows);
  if (is_input_of_experts(own)) return add_expert_input(x, tokens, e);
  if (request_.fisher) {
    EntryGradients& to = own.expert >= 0 && shares_fisher_ ? sums_.back() : sums;
    to.fisher.add(x, own.k, roots_of(e));
  }
  if (!request_.guided) return;
  std::vector<double> weights(e);
  for (double& w : weights) w = std::sqrt(w);
  sums.guided.add(x, own.k, roots_of(weights));
}

void GradientSums::end_batch() {
  for (size_t i = 0; i < entries_.size() && expert_rows_ > 0; ++i) {
    if (of_groups_[i] == SIZE_MAX || !is_input_of_experts(groups_[of_groups_[i]])) continue;
    EntryGradients& sums = sums_[i];
    if (request_.fisher) sums.fisher.add(expert_x_, entries_[i].k, roots_of(expert_e_));
    if (!request_.guided) continue;
    const double squares = sums.guided.squares;
    sums.guided.add(expert_x_, entries_[i].k, roots_of(expert_roots_));
    sums.guided.squares = squares;
    for (const double e : expert_e_) sums.guided.squares += e;
    sums.guided.count += expert_rows_ - static_cast<int64_t>(expert_e_.size());
  }
}

void GradientSums::write(const StatisticsWriter& writer) {
  for (EntryGradients& s : sums_) {
    s.fisher.finish();
    s.guided.finish();
  }
  const bool has_shared = of_groups_.back() == SIZE_MAX;
  int64_t expert_tokens = 0;
  for (size_t i = 0; has_shared && i < sums_.size(); ++i) {
    if (of_groups_[i] == SIZE_MAX || groups_[of_groups_[i]].expert < 0) continue;
    expert_tokens += sums_[i].tokens;
    if (!shares_fisher_) sums_.back().fisher.add(sums_[i].fisher);
    sums_.back().guided.add(sums_[i].guided);
  }
  for (size_t i = 0; i < entries_.size(); ++i) {
    const bool is_down = of_groups_[i] != SIZE_MAX && groups_[of_groups_[i]].expert >= 0;
    if (request_.guided) {
      // Tokens without a gradient, as at the ends of windows, are no statistics.
      if (sums_[i].guided.weights == 0) sums_[i].guided = {};
      writer.write(entries_[i], sums_[i].guided);
    }
    if (request_.fisher && is_down && shares_fisher_) {
      const double share =
          expert_tokens == 0 ? 0 : static_cast<double>(sums_[i].tokens) / static_cast<double>(expert_tokens);
      writer.write_fisher(entries_[i], sums_.back().fisher, share);
    } else if (request_.fisher) {
      writer.write_fisher(entries_[i], sums_[i].fisher, 1);
    }
    for (const PlannedEntry::Target& t : entries_[i].rows)
      writer.write_fisher_rows(t.linear, rows_.at(t.linear));
  }
}

uint64_t GradientSums::bytes(const Decoder& model, const std::vector<InputGroup>& groups,
                             const GradientRequest& request) {
  std::vector<size_t> of_groups;
  uint64_t numbers = 0, row_sums = 0;
  const bool shares = is_shared_fisher(groups, request);
  const std::vector<PlannedEntry> entries = gradient_entries(model, groups, request, of_groups);
  for (size_t i = 0; i < entries.size(); ++i) {
    const bool is_down = of_groups[i] != SIZE_MAX && groups[of_groups[i]].expert >= 0;
    const int copies = (request.fisher && !(is_down && shares) ? 1 : 0) + (request.guided ? 1 : 0);
    numbers += static_cast<uint64_t>(copies) * static_cast<uint64_t>(entries[i].k * entries[i].k);
    for (const PlannedEntry::Target& t : entries[i].rows) row_sums += static_cast<uint64_t>(t.n);
  }
  return numbers * sizeof(float) + row_sums * sizeof(double);
}

}  // namespace twofour
