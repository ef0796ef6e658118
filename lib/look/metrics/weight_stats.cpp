#include "lib/look/metrics/weight_stats.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <limits>
#include <vector>

#include "formats/atom.h"
#include "formats/e4m3.h"
#include "formats/naming.h"
#include "lib/base/io/file.h"
#include "lib/base/names/natural.h"

namespace twofour {
namespace {

/// A mask of 4 bits that marks the non-zero codes of a quad, which is four codes in two bytes.
unsigned non_zero_mask(unsigned quad) {
  unsigned mask = 0;
  for (int i = 0; i < 4; ++i) mask |= static_cast<unsigned>(((quad >> 4 * i) & 7u) != 0) << i;
  return mask;
}

/// A table of all quads, which are pairs of code bytes. An entry has the number of non-zero codes and the
/// number of non-zero aligned pairs.
struct QuadTable {
  struct Entry {
    uint8_t codes, pairs;
  };
  std::array<Entry, 65536> entries;
  QuadTable() {
    for (unsigned quad = 0; quad < 65536; ++quad) {
      const unsigned mask = non_zero_mask(quad);
      entries[quad] = {static_cast<uint8_t>(__builtin_popcount(mask)),
                       static_cast<uint8_t>(((mask & 3) != 0) + ((mask & 12) != 0))};
    }
  }
};

/// Counts `count` octets. The four bytes of an octet are `stride` bytes apart, and octets begin `next` bytes
/// apart.
void count_octets(const uint8_t* bytes, int64_t count, int64_t stride, int64_t next, WeightStats& stats) {
  static const QuadTable table;
  for (int64_t i = 0; i < count; ++i) {
    const uint8_t* b = bytes + i * next;
    const auto& even = table.entries[b[0] | (unsigned{b[stride]} << 8)];
    const auto& odd = table.entries[b[2 * stride] | (unsigned{b[3 * stride]} << 8)];
    stats.quads_2_4 += static_cast<uint64_t>((even.codes <= 2) + (odd.codes <= 2));
    stats.octets_4_8_paired += even.pairs + odd.pairs <= 2;
  }
  stats.quads += 2 * static_cast<uint64_t>(count);
  stats.octets += static_cast<uint64_t>(count);
}

double share(uint64_t part, uint64_t all) {
  return all > 0 ? static_cast<double>(part) / static_cast<double>(all) : 0;
}

}  // namespace

WeightStats& WeightStats::operator+=(const WeightStats& other) {
  for (size_t i = 0; i < codes.size(); ++i) codes[i] += other.codes[i];
  for (size_t i = 0; i < scales.size(); ++i) scales[i] += other.scales[i];
  quads += other.quads;
  quads_2_4 += other.quads_2_4;
  octets += other.octets;
  octets_4_8_paired += other.octets_4_8_paired;
  // Modules are added in any order, so the result must not depend on the position of a module with NaN.
  global_min = modules == 0 ? other.global_min : std::fmin(global_min, other.global_min);
  global_max = modules == 0 ? other.global_max : std::fmax(global_max, other.global_max);
  modules += other.modules;
  return *this;
}

double WeightStats::zero_share() const { return share(codes[0] + codes[8], weights()); }
double WeightStats::share_2_4() const { return share(quads_2_4, quads); }
double WeightStats::share_4_8_paired() const { return share(octets_4_8_paired, octets); }
uint64_t WeightStats::nan_scales() const { return scales[kE4m3Nan] + scales[kE4m3Nan | 0x80]; }

std::pair<float, float> WeightStats::scale_range() const {
  std::pair<float, float> range{0, 0};
  bool any = false;
  for (unsigned byte = 0; byte < 256; ++byte) {
    if (scales[byte] == 0 || e4m3_is_nan(byte)) continue;
    const float value = e4m3_to_float(byte);
    range = any ? std::pair{std::min(range.first, value), std::max(range.second, value)}
                : std::pair{value, value};
    any = true;
  }
  return range;
}

namespace {

/// Reads all weights of one NVFP4 module, by bounded reads.
WeightStats read_weight_stats(std::span<const TensorInfo> tensors, const Nvfp4Linear& m,
                              const TensorReader& read) {
  WeightStats stats;
  // If K is the outermost dimension, four rows of N bytes hold eight inputs of N outputs.
  const auto unit = static_cast<uint64_t>(m.k_outer ? 4 * m.n : 4);
  const uint64_t piece = std::max<uint64_t>(1, (1u << 20) / unit) * unit;
  std::array<uint64_t, 256> bytes{};
  const auto for_each_piece = [&](size_t tensor, uint64_t step, const auto& count) {
    read_in_pieces(
        tensors[tensor].bytes(), step, [&](uint64_t at, std::span<uint8_t> to) { read(tensor, at, to); },
        count);
  };
  for_each_piece(m.codes, piece, [&](uint64_t, std::span<const uint8_t> codes) {
    for (const uint8_t byte : codes) ++bytes[byte];
    for (size_t at = 0; at < codes.size(); at += unit) {
      if (!m.k_outer) {
        count_octets(codes.data(), static_cast<int64_t>(codes.size() / unit), 1, 4, stats);
        break;
      }
      count_octets(&codes[at], m.n, m.n, 1, stats);
    }
  });
  for (size_t byte = 0; byte < 256; ++byte) {
    stats.codes[byte & 15] += bytes[byte];
    stats.codes[byte >> 4] += bytes[byte];
  }
  for_each_piece(m.block_scale, 1u << 20, [&](uint64_t, std::span<const uint8_t> scales) {
    for (const uint8_t byte : scales) ++stats.scales[byte];
  });
  std::vector<float> globals(tensors[m.global_scale].bytes() / sizeof(float));
  read(m.global_scale, 0, {reinterpret_cast<uint8_t*>(globals.data()), globals.size() * sizeof(float)});
  for (float& g : globals) g = global_scale_multiplier(*m.dialect, g);
  stats.global_min = *std::min_element(globals.begin(), globals.end());
  stats.global_max = *std::max_element(globals.begin(), globals.end());
  stats.modules = 1;
  return stats;
}

ModuleStats figures_of(const std::string& name, const WeightStats& s) {
  const auto [low, high] = s.scale_range();
  return {name, s.zero_share(), s.share_2_4(), s.share_4_8_paired(), low,
          high, s.nan_scales(), s.global_min,  s.global_max};
}

}  // namespace

GroupStats read_module_stats(std::span<const Nvfp4Linear> modules, std::span<const TensorInfo> tensors,
                             const TensorReader& read, int jobs) {
  GroupStats group;
  group.modules.resize(modules.size());
  std::exception_ptr error;
  const auto count = static_cast<int64_t>(modules.size());
#pragma omp parallel for schedule(dynamic) num_threads(jobs)
  for (int64_t i = 0; i < count; ++i) {
    try {
      const Nvfp4Linear& m = modules[static_cast<size_t>(i)];
      const WeightStats stats = read_weight_stats(tensors, m, read);
      group.modules[static_cast<size_t>(i)] = figures_of(m.name, stats);
#pragma omp critical
      group.total += stats;
    } catch (...) {
#pragma omp critical
      error = std::current_exception();
    }
  }
  if (error) std::rethrow_exception(error);
  return group;
}

void Figures::add(const GroupStats& group) {
  if (group.modules.empty()) return;
  modules.insert(modules.end(), group.modules.begin(), group.modules.end());
  by_kind[split_numbers(group.modules[0].name).name_template] += group.total;
}

std::vector<double> fused_ratios(std::span<const ModuleStats> modules) {
  std::map<std::pair<std::string, size_t>, std::vector<size_t>> groups;
  for (size_t i = 0; i < modules.size(); ++i) {
    // A module with several scales has no single ratio to its neighbour.
    const ModuleStats& m = modules[i];
    const bool one = m.global_min == m.global_max && m.global_max > 0 && std::isfinite(m.global_max);
    const auto group = one ? fused_group(m.name) : std::nullopt;
    if (group) groups[*group].push_back(i);
  }
  std::vector<double> ratios(modules.size(), std::numeric_limits<double>::quiet_NaN());
  for (const auto& [key, members] : groups) {
    if (members.size() < 2) continue;
    const auto [low, high] = std::minmax_element(members.begin(), members.end(), [&](size_t a, size_t b) {
      return modules[a].global_max < modules[b].global_max;
    });
    const double ratio = double{modules[*high].global_max} / double{modules[*low].global_max};
    for (const size_t i : members) ratios[i] = ratio;
  }
  return ratios;
}

}  // namespace twofour
