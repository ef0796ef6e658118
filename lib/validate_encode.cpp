#include "lib/validate_encode.h"

#include <fmt/format.h>
#include <omp.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>
#include <map>

#include "formats/e4m3.h"
#include "formats/e8m0.h"
#include "kernels/device/check.h"
#include "lib/transform/encode_scale.h"
#include "lib/threads/interrupt.h"
#include "lib/threads/parallel.h"
#include "lib/validate_files.h"

namespace twofour {
namespace {

using Floats = std::vector<float>;
using Bytes = std::vector<uint8_t>;

/// Keeps the two largest magnitudes of each four, of equal ones the first.
Floats pruned(const Floats& weights) {
  Floats kept = weights;
  for (size_t i = 0; i < weights.size(); ++i) {
    const size_t quad = i / 4 * 4;
    int before = 0;
    for (size_t j = quad; j < quad + 4; ++j) {
      const float a = std::fabs(weights[j]), b = std::fabs(weights[i]);
      before += a > b || (a == b && j < i);
    }
    if (before >= 2) kept[i] = 0;
  }
  return kept;
}

Bytes bytes_of(const Floats& values) {
  Bytes bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

/// Derives what is written of one group again and holds the artifact against it.
class GroupCheck {
 public:
  GroupCheck(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan, const EncodeGroup& group,
             Progress& progress)
      : artifact_(artifact),
        source_(source),
        plan_(plan),
        group_(group),
        progress_(progress),
        rule_(encode_rule(plan.recipe)),
        reader_(source) {}

  void run(ValidateReport& report) {
    const auto all = [&](auto&& f) {
      for (size_t i = group_.first; i < group_.first + group_.count; ++i) f(plan_.matrices[i]);
    };
    if (rule_.fp8) {
      all([&](const EncodedMatrix& m) { check_fp8(m); });
    } else if (const auto exponent = cast_exponent()) {
      all([&](const EncodedMatrix& m) { check_cast(m, *exponent); });
    } else {
      float largest = 0;
      all([&](const EncodedMatrix& m) { largest = std::max(largest, amax(m)); });
      all([&](const EncodedMatrix& m) { check_nvfp4(m, largest); });
    }
    all([&](const EncodedMatrix& m) { check_bias(m); });
    for (const auto& [tensor, w] : wrong_) {
      differ(
          report, "bytes", plan_.tensors[tensor].info.name,
          fmt::format("{} bytes differ from what the source derives to, the first at {}: expected 0x{:02X}, "
                      "found 0x{:02X}",
                      w.count, w.first, w.expected, w.found));
    }
  }

 private:
  template <class F>
  void for_each_strip(const EncodedMatrix& m, F&& f) {
    const int64_t step = encode_strip_rows(plan_.weights[m.module], plan_.limits);
    for (int64_t row = 0; row < m.rows; row += step) {
      check_interrupt();
      f(row, std::min(row + step, m.rows));
    }
  }

  Floats rows(const EncodedMatrix& m, int64_t begin, int64_t end) {
    Floats all, own;
    const int64_t first = m.first + begin * m.step, last = m.first + (end - 1) * m.step;
    all.resize(static_cast<size_t>((last + 1 - first) * m.k));
    reader_.read_rows(plan_.weights[m.module], m.expert, first, last + 1, all);
    if (m.step == 1) return all;
    for (int64_t r = first; r <= last; r += m.step) {
      own.insert(own.end(), all.begin() + (r - first) * m.k, all.begin() + (r - first + 1) * m.k);
    }
    return own;
  }

  float amax(const EncodedMatrix& m) {
    float largest = 0;
    for_each_strip(m, [&](int64_t begin, int64_t end) {
      for (const float x : rows(m, begin, end)) largest = std::max(largest, std::fabs(x));
    });
    return largest;
  }

  /// Compares bytes of what is written of a matrix.
  void hold(const EncodedMatrix& m, EncodedPart part, int64_t begin, const Bytes& expected) {
    const size_t tensor = m.part(part);
    Bytes found(expected.size());
    artifact_.read(*artifact_.find(plan_.tensors[tensor].info.name), static_cast<uint64_t>(begin), found);
    progress_.done += 2 * found.size();
    for (size_t i = 0; i < found.size(); ++i) {
      if (found[i] == expected[i]) continue;
      Wrong& w = wrong_[tensor];
      if (w.count++ == 0) w = {1, static_cast<uint64_t>(begin) + i, expected[i], found[i]};
    }
  }

  void check_nvfp4(const EncodedMatrix& m, float largest) {
    QuantizeRule quantize = quantize_rule(source_, plan_, group_);
    const MatrixScale scale = kept_scale(rule_, quantize, plan_.recipe.kept, m.name)
                                  .value_or(shared_scale(rule_, quantize, largest));
    quantize.zero_block = scale.zero_block;
    hold(m, EncodedPart::kGlobalScale, 0, bytes_of({scale.written}));
    for_each_strip(m, [&](int64_t begin, int64_t end) {
      Floats weights = rows(m, begin, end);
      if (rule_.prune) weights = pruned(weights);
      Bytes codes(weights.size() / 2), scales(weights.size() / kGroup);
      const auto count = end - begin;
#pragma omp parallel for schedule(static)
      for (int64_t r = 0; r < count; ++r) {
        quantize_nvfp4(quantize, scale.global,
                       {&weights[static_cast<size_t>(r * m.k)], static_cast<size_t>(m.k)},
                       &codes[static_cast<size_t>(r * m.k / 2)],
                       &scales[static_cast<size_t>(r * m.k / kGroup)], Isa::portable);
      }
      for (size_t i = 0; scale.is_kept && i < weights.size(); ++i) {
        if (weights[i] == 0 && std::signbit(weights[i])) codes[i / 2] |= i % 2 == 0 ? 0x08 : 0x80;
      }
      hold(m, EncodedPart::kValues, begin * m.k / 2, codes);
      hold(m, EncodedPart::kScales, begin * m.k / kGroup, scales);
    });
  }

  void check_fp8(const EncodedMatrix& m) {
    const int64_t rows_of_scale = rule_.granularity == Granularity::kTensor ? m.rows
                                  : rule_.granularity == Granularity::kRow  ? 1
                                                                            : kFp8Block;
    const int64_t width = rule_.granularity == Granularity::kBlock ? kFp8Block : m.k;
    const int64_t across = (m.k + width - 1) / width;
    const auto scale_of = [&](int64_t row, int64_t k) {
      return static_cast<size_t>(row / rows_of_scale * across + k / width);
    };
    Floats scales(scale_of(m.rows - 1, m.k - 1) + 1);
    for_each_strip(m, [&](int64_t begin, int64_t end) {
      const Floats weights = rows(m, begin, end);
      for (int64_t i = 0; i < (end - begin) * m.k; ++i) {
        float& largest = scales[scale_of(begin + i / m.k, i % m.k)];
        largest = std::max(largest, std::fabs(weights[static_cast<size_t>(i)]));
      }
    });
    for (float& scale : scales) {
      scale /= kE4m3Max;
      if (scale == 0) scale = 1;
    }
    hold(m, EncodedPart::kScales, 0, bytes_of(scales));
    if (m.input_scale != 0) hold(m, EncodedPart::kInputScale, 0, bytes_of({m.input_scale}));
    for_each_strip(m, [&](int64_t begin, int64_t end) {
      const Floats weights = rows(m, begin, end);
      Bytes bytes(weights.size());
      const auto count = (end - begin) * m.k;
#pragma omp parallel for schedule(static)
      for (int64_t i = 0; i < count; ++i) {
        const auto at = static_cast<size_t>(i);
        bytes[at] = e4m3_from_float(weights[at] / scales[scale_of(begin + i / m.k, i % m.k)]);
      }
      hold(m, EncodedPart::kValues, begin * m.k, bytes);
    });
  }

  /// Rows of a matrix in a tensor of the source, `width` bytes each.
  Bytes stored(const EncodedMatrix& m, size_t tensor, int64_t width, int64_t begin, int64_t end) {
    Bytes all(static_cast<size_t>(width)), own;
    for (int64_t r = begin; r < end; ++r) {
      const int64_t row = m.expert * plan_.weights[m.module].n + m.first + r * m.step;
      source_.read(tensor, static_cast<uint64_t>(row * width), all);
      own.insert(own.end(), all.begin(), all.end());
    }
    return own;
  }

  /// The exponent of the global scale under which all of the group's MXFP4 stays as it is.
  std::optional<int> cast_exponent() {
    int low = 1000, high = -1000;
    for (size_t i = group_.first; i < group_.first + group_.count; ++i) {
      const EncodedMatrix& m = plan_.matrices[i];
      const WeightModule& w = plan_.weights[m.module];
      if (w.format != WeightFormat::kMxfp4 || rule_.prune || plan_.recipe.kept.find(m.name)) return {};
      for_each_strip(m, [&](int64_t begin, int64_t end) {
        const Bytes scales = stored(m, *w.scale, m.k / kMxGroup, begin, end);
        const Floats weights = rows(m, begin, end);
        for (size_t j = 0; j < weights.size(); ++j) {
          if (weights[j] == 0) continue;
          low = std::min(low, scales[j / kMxGroup] - 127);
          high = std::max(high, scales[j / kMxGroup] - 127);
        }
      });
    }
    if (high < low) return 0;
    if (high - low > 17) return {};
    return std::clamp(high - 8, -126, 126);
  }

  void check_cast(const EncodedMatrix& m, int exponent) {
    const WeightModule& w = plan_.weights[m.module];
    hold(m, EncodedPart::kGlobalScale, 0, bytes_of({std::ldexp(1.0f, rule_.divides ? -exponent : exponent)}));
    for_each_strip(m, [&](int64_t begin, int64_t end) {
      hold(m, EncodedPart::kValues, begin * m.k / 2, stored(m, w.weight, m.k / 2, begin, end));
      Bytes scales;
      for (const uint8_t byte : stored(m, *w.scale, m.k / kMxGroup, begin, end)) {
        const double scale = static_cast<double>(e8m0_to_float(byte)) * std::ldexp(1.0, -exponent);
        scales.insert(scales.end(), 2, e4m3_from_float(static_cast<float>(std::clamp(scale, 0x1p-9, 256.0))));
      }
      hold(m, EncodedPart::kScales, begin * m.k / kGroup, scales);
    });
  }

  void check_bias(const EncodedMatrix& m) {
    if (m.part(EncodedPart::kBias) == EncodedMatrix::kNoPart) return;
    const size_t bias = *plan_.weights[m.module].bias;
    hold(m, EncodedPart::kBias, 0, stored(m, bias, dtype_bits(source_.tensors()[bias].dtype) / 8, 0, m.rows));
  }

  const Checkpoint& artifact_;
  const Checkpoint& source_;
  const Plan& plan_;
  const EncodeGroup& group_;
  Progress& progress_;
  const EncodeRule rule_;
  WeightReader reader_;
  struct Wrong {
    uint64_t count = 0, first = 0;
    uint8_t expected = 0, found = 0;
  };
  std::map<size_t, Wrong> wrong_;
};

}  // namespace

void check_encoded(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan, Progress& progress,
                   ValidateReport& report) {
  std::vector<ValidateReport> found(plan.groups.size());
  const auto check = [&](size_t i) {
    GroupCheck(artifact, source, plan, plan.groups[i], progress).run(found[i]);
  };
  if (plan.groups.size() < 2 * static_cast<size_t>(omp_get_max_threads())) {
    for (size_t i = 0; i < found.size(); ++i) check(i);  // threads share the rows of one
  } else {
    parallel_for(found.size(), check);
  }
  for (ValidateReport& part : found) {
    std::move(part.differences.begin(), part.differences.end(), std::back_inserter(report.differences));
  }
}

}  // namespace twofour
