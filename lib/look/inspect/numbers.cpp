#include "lib/look/inspect/numbers.h"

#include <fmt/format.h>
#include <xtensor/xadapt.hpp>
#include <xtensor/xbuilder.hpp>
#include <xtensor/xnoalias.hpp>
#include <xtensor/xstrided_view.hpp>
#include <xtensor/xview.hpp>

#include <algorithm>

#include "formats/error.h"
#include "lib/base/threads/parallel.h"
#include "lib/source/linears/tensor_values.h"

namespace twofour {

std::optional<NamedWeights> NamedNumbers::find(std::string_view name) const {
  const std::vector<Linear>& modules = matrices_.modules();
  for (size_t i = 0; i < modules.size(); ++i) {
    const Linear& m = modules[i];
    if (m.name != name) continue;
    NamedWeights found{m.name, matrices_.format_of(m), {m.n, m.k}, i};
    if (m.stacked) found.shape.insert(found.shape.begin(), m.e);
    return found;
  }
  const auto matrix = matrices_.all().find(std::string(name));
  if (matrix == matrices_.all().end()) {
    const std::string* why = checkpoint_.find(name) ? nullptr : matrices_.why_left_out(name);
    if (why != nullptr) throw Error(*why);
    return std::nullopt;
  }
  const StoredMatrix& stored = matrix->second;
  const Linear& m = matrices_.module_of(stored);
  return NamedWeights{matrix->first, matrices_.format_of(m), {stored.count, m.k}, stored.module, &stored};
}

void NamedNumbers::read(const NamedWeights& weights, std::span<const SliceRange> ranges,
                        std::span<float> out) const {
  const Linear& module = matrices_.modules()[weights.module];
  const bool stacked = ranges.size() == 3;
  const SliceRange experts = stacked ? ranges[0] : SliceRange{0, 1};
  const SliceRange rows = ranges[stacked ? 1 : 0], columns = ranges[stacked ? 2 : 1];
  const auto k = static_cast<size_t>(module.k), width = static_cast<size_t>(columns.end - columns.begin);
  if (out.empty()) return;
  // Pieces of about a megabyte of float32, each of one expert
  const int64_t height = rows.end - rows.begin;
  const int64_t piece = std::clamp<int64_t>((int64_t{1} << 18) / module.k, 1, height);
  const int64_t pieces = (height + piece - 1) / piece;
  parallel_workers(static_cast<size_t>((experts.end - experts.begin) * pieces), [&] {
    return [&, reader = WeightReader(checkpoint_), buffer = std::vector<float>()](size_t i) mutable {
      const auto at = static_cast<int64_t>(i);
      const int64_t e = experts.begin + at / pieces, n0 = rows.begin + at % pieces * piece;
      const int64_t n1 = std::min(n0 + piece, rows.end);
      const auto first = static_cast<size_t>(at / pieces * height + n0 - rows.begin),
                 count = static_cast<size_t>(n1 - n0);
      const std::span<float> to = out.subspan(first * width, count * width);
      buffer.resize(width == k ? 0 : count * k);
      const std::span<float> read = width == k ? to : std::span(buffer);
      if (weights.matrix != nullptr) {
        matrices_.read(reader, *weights.matrix, n0, n1, read);
      } else {
        reader.read_rows(module, e, n0, n1, read);
      }
      if (width == k) return;
      const auto from = xt::adapt(buffer.data(), {count, k});
      auto values = xt::adapt(to.data(), {count, width});
      for (size_t r = 0; r < count; ++r)
        xt::noalias(xt::view(values, r)) = xt::view(from, r, xt::range(columns.begin, columns.end));
    };
  });
}

std::vector<double> read_elements(const Checkpoint& c, size_t tensor, std::span<const SliceRange> ranges) {
  const TensorInfo& t = c.tensors()[tensor];
  if (dtype_bits(t.dtype) % 8 != 0) {
    throw Error(fmt::format("{}: expected elements of whole bytes, found {}", c.where(tensor), describe(t)));
  }
  std::vector<double> values;
  if (std::ranges::any_of(ranges, [](const SliceRange& r) { return r.begin == r.end; })) return values;
  const auto width = static_cast<size_t>(element_bytes(t.dtype));
  const SliceRange last = ranges.empty() ? SliceRange{0, 1} : ranges.back();  // one read along it
  std::vector<uint8_t> bytes(static_cast<size_t>(last.end - last.begin) * width);
  xt::xstrided_slice_vector slices;
  for (const SliceRange& r : ranges) slices.push_back(xt::range(r.begin, r.end));
  if (!ranges.empty()) slices.back() = last.begin;
  const std::vector<size_t> shape(t.shape.begin(), t.shape.end());
  const auto elements = xt::reshape_view(xt::arange(t.bytes() / width), shape);
  for (const uint64_t first : xt::strided_view(elements, slices)) {
    c.read(tensor, first * width, bytes);
    for (size_t i = 0; i < bytes.size(); i += width) values.push_back(element_number(t.dtype, &bytes[i]));
  }
  return values;
}

}  // namespace twofour
