#include "lib/lint/chunks/zero_places.h"

#include <algorithm>
#include <cmath>

namespace twofour {
namespace {

uint32_t mix_position(uint64_t at) {
  uint64_t x = (at + 1) * 0x9E3779B97F4A7C15u;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return static_cast<uint32_t>(x ^ (x >> 31));
}

}  // namespace

void ZeroPlaces::add(uint64_t at, uint64_t size) {
  ++count;
  first = std::min(first, static_cast<uint32_t>(at));
  end = std::max(end, static_cast<uint32_t>(at + 1));
  const uint64_t half = std::max<uint64_t>(1, size / 2);
  all += mix_position(at);
  halves[at < half ? 0 : 1] += mix_position(at % half);
  pairs[at % 2] += mix_position(at / 2);
}

void ZeroPlaces::merge(const ZeroPlaces& o) {
  count += o.count;
  first = std::min(first, o.first);
  end = std::max(end, o.end);
  all += o.all;
  for (size_t i = 0; i < halves.size(); ++i) halves[i] += o.halves[i], pairs[i] += o.pairs[i];
}

bool is_zero_line(NumberKind kind, std::span<const uint8_t> bytes) {
  if (kind == NumberKind::kInt4) return std::ranges::all_of(bytes, [](uint8_t b) { return b == 0x88; });
  for (uint64_t i = 0; i < bytes.size(); ++i) {
    if ((bytes[i] & magnitude_bits(kind, i)) != 0) return false;
  }
  return true;
}

ZeroRun longest_zeros(NumberKind kind, std::span<const uint8_t> line) {
  const auto width = static_cast<uint64_t>(width_of(kind));
  ZeroRun longest;
  uint64_t run = 0;
  for (uint64_t at = 0; at + width <= line.size(); at += width) {
    bool zero = true;
    for (uint64_t i = 0; i < width; ++i) zero = zero && (line[at + i] & magnitude_bits(kind, i)) == 0;
    run = zero ? run + 1 : 0;
    longest.zeros += zero;
    if (run > longest.size()) longest.end = at / width + 1, longest.begin = longest.end - run;
  }
  return longest;
}

bool is_unlikely_run(NumberKind kind, std::span<const uint8_t> line, const ZeroRun& run) {
  // The likelihood of one share of zeros in the whole line, and of another one in its rest.
  const auto likelihood = [](double some, double all) {
    const auto term = [&](double part) { return part > 0 ? part * std::log(part / all) : 0; };
    return term(some) + term(all - some);
  };
  const auto all = static_cast<double>(line.size() / static_cast<uint64_t>(width_of(kind))),
             rest = all - static_cast<double>(run.size());
  const double used = all - static_cast<double>(run.zeros);
  // The logarithm of a ratio of likelihoods. Neighbours are of similar size, so that the few weights which
  // much pruning leaves are in clusters, and runs of several hundred zeros between them are none by chance.
  constexpr double kUnlikely = 30, kSlope = 180, kHalf = 0.5;
  const double pruned = rest > 0 ? std::max(0.0, 1 - used / rest - kHalf) : 0;
  return likelihood(used, rest) - likelihood(used, all) > kUnlikely + kSlope * pruned;
}

}  // namespace twofour
