#include "lib/write/transform/reference_checkpoint.h"

#include <fmt/format.h>

#include "lib/source/linears/linears.h"
#include "lib/write/encode/quantized_group.h"

namespace twofour {

ReferenceCheckpoint::ReferenceCheckpoint(Checkpoint checkpoint) : checkpoint_(std::move(checkpoint)) {
  const Checkpoint& c = checkpoint_;
  const auto& modules = c.nvfp4_modules();
  if (modules.empty()) {
    throw Error(
        fmt::format("{}: expected NVFP4 modules, found {}", c.path().string(), other_formats_text(c)));
  }
  scales_.divides = modules[0].dialect->divides;
  Problems problems;
  for (size_t i = 0; i < modules.size(); ++i) {
    const Nvfp4Linear& m = modules[i];
    if (m.dialect->divides != scales_.divides) {
      problems.add(fmt::format("{}: expected global scales that all {}, found one of {}",
                               c.where(m.global_scale), scales_.divides ? "divide" : "multiply",
                               m.dialect->name));
    }
    for (int64_t e = 0; e < m.e; ++e) {
      const uint32_t bits = read_global_scale(c, m, e, problems).raw_bits;
      const auto add = [&](const std::string& name, Rows rows) {
        rows_[name] = rows;
        scales_.scales.push_back({name, bits});
      };
      if (!m.dialect->stacked) {
        add(m.name, {i, 0, 0, 1, m.n});
        continue;
      }
      for (const StackPart& p : stack_parts(c, m.name, m.n)) {
        add(expert_name(m.name, e, p.leaf), {i, e, p.first, p.step, p.rows});
      }
    }
  }
  problems.refuse();
  scales_.sort();
}

uint64_t ReferenceCheckpoint::compare_rows(const Rows& at, size_t tensor, int64_t row, int64_t width,
                                           std::span<const uint8_t> ours, KeptDifference& difference) const {
  const Nvfp4Linear& m = checkpoint_.nvfp4_modules()[at.module];
  const int64_t count = static_cast<int64_t>(ours.size()) / width;
  std::vector<uint8_t> theirs(static_cast<size_t>(((count - 1) * at.step + 1) * width));
  checkpoint_.read(tensor, static_cast<uint64_t>((at.expert * m.n + at.first + row * at.step) * width),
                   theirs);
  uint64_t wrong = 0;
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t i = 0; i < width; ++i) {
      const uint8_t expected = theirs[static_cast<size_t>(r * at.step * width + i)];
      const uint8_t found = ours[static_cast<size_t>(r * width + i)];
      if (expected == found) continue;
      if (difference.first.empty()) {
        const int64_t per_byte = m.k / width;
        difference.first =
            fmt::format("the first {} at row {}, k {}: expected 0x{:02X}, found 0x{:02X}",
                        per_byte == 2 ? "codes" : "block scale", row + r, i * per_byte, expected, found);
      }
      ++wrong;
    }
  }
  difference.bytes += ours.size();
  return wrong;
}

void ReferenceCheckpoint::compare(const std::string& name, int64_t row, int64_t k,
                                  std::span<const uint8_t> codes, std::span<const uint8_t> scales,
                                  KeptDifference& difference) const {
  const auto at = rows_.find(name);
  if (at == rows_.end()) return;
  const Nvfp4Linear& m = checkpoint_.nvfp4_modules()[at->second.module];
  const int64_t last = row + static_cast<int64_t>(codes.size()) / (k / 2);
  if (m.k != k || last > at->second.rows) {
    throw Error(fmt::format("{}: expected a matrix of at least {} rows with K {}, found {} with {}",
                            checkpoint_.where(m.codes), last, k, at->second.rows, m.k));
  }
  if (m.k_outer) return;  // such a tensor's bytes pair weights of other rows
  difference.compared = true;
  difference.codes += compare_rows(at->second, m.codes, row, k / 2, codes, difference);
  difference.scales += compare_rows(at->second, m.block_scale, row, k / 16, scales, difference);
}

}  // namespace twofour
