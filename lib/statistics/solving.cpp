#include "lib/statistics/solving.h"

#include <fmt/format.h>

namespace twofour {
namespace {

constexpr int kPatternSweeps = 4, kDenseSweeps = 2;
constexpr int64_t kEnough = 4;  // tokens for each input, from which descent gains on other tokens
constexpr double kDampingOfFew = 0.1;

}  // namespace

std::string_view solving_name(const Solving& s, bool has_pattern) {
  switch (s.method) {
    case Solving::Method::kPlain:
      break;
    case Solving::Method::kDiagonal:
      return has_pattern ? "wanda" : "rtn";
    case Solving::Method::kFull:
      return has_pattern ? "joint" : "gptq";
  }
  return "plain";
}

Solving choose_solving(const Statistics& statistics, std::string_view linear, std::string_view method,
                       int sweeps, bool has_pattern) {
  Solving s;
  const StatisticsEntry* entry = statistics.find(linear);
  if (entry == nullptr) {
    s.why = "no statistics";
    return s;
  }
  if (entry->count == 0) {
    s.why = "no tokens";
    return s;
  }
  s.entry = entry;
  s.method = Solving::Method::kDiagonal;
  if (method == "wanda" || method == "rtn") {
    if (entry->kind != StatisticsKind::kDiagonal && sweeps > 0) s.sweeps = sweeps;
    return s;
  }
  if (entry->kind == StatisticsKind::kDiagonal) {
    s.why = "a diagonal alone";
    return s;
  }
  const int64_t k = entry->kind == StatisticsKind::kBlocks ? entry->block : entry->k;
  if (entry->count < k) {
    s.why = fmt::format("fewer tokens than inputs, {} of {}", entry->count, k);
    return s;
  }
  s.method = Solving::Method::kFull;
  if (entry->count < kEnough * k) {
    s.damping = kDampingOfFew;
    s.why = fmt::format("fewer than {} tokens an input, {} of {}", kEnough, entry->count, k);
    return s;
  }
  s.sweeps = sweeps >= 0 ? sweeps : has_pattern ? kPatternSweeps : kDenseSweeps;
  return s;
}

uint64_t solving_bytes(int64_t k) {
  const auto n = static_cast<uint64_t>(k);
  // Of two entries the mean, damped, and its factor; while one is prepared, the factor in double; tiles of
  // rows.
  return 2 * 3 * n * n * sizeof(float) + n * n * sizeof(double) + 6 * 32 * n * sizeof(float);
}

}  // namespace twofour
