#include "lib/source/dialects/scheme.h"

#include <fmt/format.h>

namespace twofour {

Scheme scheme_of(const Checkpoint& c, const Linear& m) {
  Scheme s;
  s.format = m.format;
  s.has_input_scale = m.input_scale.has_value();
  if (!m.scale) return s;
  const TensorInfo& scale = c.tensors()[*m.scale];
  if (!m.format->tiles) {
    s.rows = m.scale_rows;
    s.cols = m.scale_cols;
    return s;
  }
  s.scale_type = scale.dtype;
  // Pieces of an embedding may share a scale beside them.
  s.scale = scale.name.substr(scale.name.starts_with(m.name + ".") || m.stacked ? m.name.size()
                                                                                : scale.name.rfind('.'));
  // A small matrix may be a single block. The scale's name tells it from a scale for the whole tensor.
  const bool is_block = scale.shape == std::vector<int64_t>{1, 1} && s.scale != ".weight_scale";
  if (is_block && m.n <= kFp8Block && m.k <= kFp8Block) {
    s.granularity = Granularity::kBlock;
    s.rows = s.cols = kFp8Block;
    return s;
  }
  const bool is_mx = is_mxfp8(c, m);  // if K is 32, also with one scale for each row
  if (!is_mx && m.scale_rows == m.n && m.scale_cols == m.k) return s;
  s.granularity =
      !is_mx && m.scale_rows == 1 && m.scale_cols == m.k ? Granularity::kRow : Granularity::kBlock;
  if (s.granularity == Granularity::kBlock) {
    s.rows = m.scale_rows;
    s.cols = m.scale_cols;
  }
  return s;
}

std::string describe(const Scheme& s) {
  std::string text = s.format->name;
  if (s.is_mxfp8()) {
    text = "MXFP8";
  } else if (s.format->tiles) {
    text += s.granularity == Granularity::kTensor ? " with a scale a tensor"
            : s.granularity == Granularity::kRow  ? " with a scale a row"
                                                  : fmt::format(" by blocks of {} x {}", s.rows, s.cols);
  }
  return text + (s.has_input_scale ? " and input scales" : "");
}

}  // namespace twofour
