#include "lib/transform/row_encoder.h"

#include <algorithm>

#include "kernels/numbers/casts.h"
#include "kernels/pack/prune.h"
#include "lib/artifact/open_source.h"
#include "lib/findings/problems.h"
#include "lib/threads/interrupt.h"
#include "lib/transform/encode_scale.h"
#include "lib/transform/encoder.h"

namespace twofour {
namespace {

class RowEncoder : public RowQuantizer {
 public:
  RowEncoder(const Checkpoint& source, const Compute& compute)
      : source_(source), compute_(compute), isa_(compute.isa), reader_(source) {}

  QuantizedRows quantize(const QuantizedGroup& group) override {
    // It keeps what groups of one entry of statistics share.
    if (!encoder_) encoder_ = std::make_unique<Encoder>(Worker(source_, compute_));
    QuantizedRows rows;
    rows.parts.resize(group.outputs(source_).size());
    for (size_t p = 0; p < rows.parts.size(); ++p)
      rows.parts[p].reserve(group.part_info(static_cast<int>(p)).bytes());
    rows.results = encoder_->encode(group, [&](int part, std::span<const uint8_t> bytes) {
      auto& to = rows.parts[static_cast<size_t>(part)];
      to.insert(to.end(), bytes.begin(), bytes.end());
    });
    std::vector<std::string> lines;
    for (const EncodedResult& r : rows.results)
      lines.insert(lines.end(), r.problems.begin(), r.problems.end());
    if (!lines.empty()) throw ErrorLines(std::move(lines));
    return rows;
  }

  GroupScale survey(const QuantizedGroup& group) override {
    buffers_ = {};  // the encoder has its own
    return Encoder(Worker(source_, {isa_})).first_pass(group);
  }

  void rewrite(const TensorRewrite& tensor, uint64_t begin, std::span<uint8_t> out) override {
    RangeResult result;
    tensor.make(source_, begin, out, result);
  }

  void quantize(const QuantizedGroup& group, const GroupScale& scale, size_t matrix, const RowRange& rows,
                std::span<uint8_t> codes, std::span<uint8_t> scales) override {
    const EncodedMatrix& m = group.matrices()[matrix];
    const int64_t step = std::max<int64_t>(1, group.strip_rows(*m.source) / m.step);
    const int64_t inputs = rows.k1 - rows.k0;
    for (int64_t row = rows.begin; row < rows.end; row += step) {
      check_interrupt();
      const RowRange some{row, std::min(row + step, rows.end), rows.k0, rows.k1};
      const auto part = [&](std::span<uint8_t> of, int64_t per_byte) {
        const int64_t width = inputs / per_byte;
        return of.subspan(static_cast<size_t>((row - rows.begin) * width),
                          static_cast<size_t>((some.end - row) * width));
      };
      if (scale.exponent) {
        cast(m, *scale.exponent, some, part(codes, 2), part(scales, kGroup));
      } else {
        encode(group.encode_rule(), scale, m, some, part(codes, 2), part(scales, kGroup));
      }
    }
  }

 private:
  /// Rows of the module that rows of a matrix are among: the first, and one behind the last.
  static std::pair<int64_t, int64_t> module_rows(const EncodedMatrix& m, const RowRange& rows) {
    return {m.first + rows.begin * m.step, m.first + (rows.end - 1) * m.step + 1};
  }

  /// Weights [rows, k1 - k0].
  std::span<float> read(const EncodedMatrix& m, const RowRange& rows) {
    const auto [begin, end] = module_rows(m, rows);
    const Linear& from = *m.source;
    const bool is_part = rows.k1 - rows.k0 < m.k;
    std::vector<float>& all = buffers_.weights;
    if (is_part && !from.format->coded && !from.k_outer) {
      all.resize(static_cast<size_t>((rows.end - rows.begin) * (rows.k1 - rows.k0)));
      read_inputs(m, rows, all);
      return all;
    }
    all.resize(static_cast<size_t>((end - begin) * m.k));
    reader_.read_rows(from, m.expert, begin, end, all);
    if (m.step == 1 && !is_part) return all;
    return gather<float>(m, rows, all, 1, buffers_.gathered);
  }

  /// Some inputs of rows of floats, without the others.
  void read_inputs(const EncodedMatrix& m, const RowRange& rows, std::span<float> to) {
    const DType type = source_.tensors()[m.source->weight].dtype;
    const auto width = static_cast<int64_t>(dtype_bits(type)) / 8, inputs = rows.k1 - rows.k0;
    buffers_.stored.resize(static_cast<size_t>(inputs * width));
    for (int64_t r = 0; r < rows.end - rows.begin; ++r) {
      const int64_t row = m.expert * m.source->n + m.first + (rows.begin + r) * m.step;
      source_.read(m.source->weight, static_cast<uint64_t>((row * m.k + rows.k0) * width), buffers_.stored);
      widen(type, buffers_.stored.data(),
            to.subspan(static_cast<size_t>(r * inputs), static_cast<size_t>(inputs)), isa_);
    }
  }

  /// Of `all`, the module's rows among which they are, the matrix's rows and the inputs that are asked for;
  /// `per_item` weights share an item.
  template <class T>
  static std::span<T> gather(const EncodedMatrix& m, const RowRange& rows, std::span<const T> all,
                             int64_t per_item, std::vector<T>& to) {
    const int64_t pitch = m.k / per_item, width = (rows.k1 - rows.k0) / per_item;
    to.resize(static_cast<size_t>((rows.end - rows.begin) * width));
    for (int64_t r = 0; r < rows.end - rows.begin; ++r) {
      std::copy_n(all.begin() + r * m.step * pitch + rows.k0 / per_item, width, to.begin() + r * width);
    }
    return to;
  }

  void encode(const EncodeRule& words, const GroupScale& shared, const EncodedMatrix& m, const RowRange& rows,
              std::span<uint8_t> codes, std::span<uint8_t> scales) {
    QuantizeRule rule = quantize_rule(words);
    const MatrixScale scale = shared_scale(words, rule, shared.amax);
    rule.zero_block = scale.zero_block;
    const std::span<float> weights = read(m, rows);
    if (words.prune) prune_2_4(weights, isa_);
    quantize_nvfp4(rule, scale.global, weights, codes.data(), scales.data(), isa_);
  }

  void cast(const EncodedMatrix& m, int exponent, const RowRange& rows, std::span<uint8_t> codes,
            std::span<uint8_t> scales) {
    const auto [begin, end] = module_rows(m, rows);
    const StoredRows stored = reader_.read_stored(*m.source, m.expert, begin, end);
    const auto own = gather<uint8_t>(m, rows, stored.weights, 2, buffers_.stored);
    std::copy(own.begin(), own.end(), codes.begin());
    const auto powers = gather<uint8_t>(m, rows, stored.scales, kMxGroup, buffers_.stored);
    cast_mxfp4_scales(powers, exponent, scales.data());
    round_small_mxfp4_blocks(powers, exponent, codes.data());
  }

  const Checkpoint& source_;
  const Compute compute_;
  const Isa isa_;
  WeightReader reader_;
  std::unique_ptr<Encoder> encoder_;  ///< once a group is quantized as a whole
  struct {
    std::vector<float> weights, gathered;
    std::vector<uint8_t> stored;
  } buffers_;
};

}  // namespace

MakeRowQuantizer row_encoders(const Compute& compute) {
  return [compute](const Checkpoint& source, int threads) {
    Compute own = compute;
    own.threads = std::min(threads, kSolverThreads);
    return std::make_unique<RowEncoder>(source, own);
  };
}

namespace {

bool holds_zero_points(const TensorInfo& t) {
  return t.dtype == DType::kI32 && (t.name.ends_with(".qzeros") || t.name.ends_with(".weight_zero_point"));
}

}  // namespace

Checkpoint open_to_convert(const std::filesystem::path& path, const Recipe& recipe, Io io,
                           const MemoryLimits& limits, const Compute& compute) {
  Checkpoint source = open_source(path, ReadPath::kFast, {}, io, recipe.zero_points);
  const auto tensors = source.tensors();
  if (recipe.zero_points != ZeroPoints::kAsStated &&
      std::none_of(tensors.begin(), tensors.end(), holds_zero_points)) {
    throw Error(fmt::format("{}: expected INT4 with zero points, which are read as {}, found none",
                            path.string(), zero_points_word(recipe.zero_points)));
  }
  return open_quantized(std::move(source), recipe, row_encoders(compute), limits, compute.threads);
}

}  // namespace twofour
