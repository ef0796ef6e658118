#include "lib/transform/encoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <map>

#include "kernels/device/check.h"
#include "kernels/numbers/casts.h"
#include "kernels/pack/prune.h"
#include "lib/findings/problems.h"
#include "lib/threads/interrupt.h"

namespace twofour {
namespace {

bool same_source(const EncodedMatrix& a, const EncodedMatrix& b) {
  return a.source == b.source && a.expert == b.expert;
}

/// The first row of a matrix at or after row `n` of its module.
int64_t row_at(const EncodedMatrix& m, int64_t n) {
  return std::clamp<int64_t>((n - m.first + m.step - 1) / m.step, 0, m.rows);
}

std::span<const uint8_t> bytes_of(std::span<const float> values) {
  return {reinterpret_cast<const uint8_t*>(values.data()), values.size_bytes()};
}

size_t blocks_of(int64_t n) { return static_cast<size_t>((n + kFp8Block - 1) / kFp8Block); }

}  // namespace

std::span<const float> Encoder::read(const Linear& m, int64_t expert, int64_t begin, int64_t end) {
  const auto count = static_cast<size_t>((end - begin) * m.k);
  const RowBlock row_block{&m, expert, begin, end};
  if (held_ != row_block) {
    held_ = {};  // nothing, should reading fail
    if (rows_.size() < count) rows_.resize(count);
    reader_.read_rows(m, expert, begin, end, std::span(rows_).first(count));
    held_ = row_block;
  }
  return std::span<const float>(rows_).first(count);
}

template <class F>
void Encoder::for_each_source(F&& f) {
  const auto& matrices = group_->matrices();
  for (size_t i = 0; i < matrices.size();) {
    size_t last = i + 1;  // a stack's gate and up are read together
    while (last < matrices.size() && same_source(matrices[last], matrices[i])) ++last;
    const Linear& m = *matrices[i].source;
    const int64_t step = group_->strip_rows(m);
    for (int64_t n = 0; n < m.n; n += step) {
      check_interrupt();
      f(i, last, n, std::min(n + step, m.n));
    }
    i = last;
  }
}

template <class F>
void Encoder::for_each_row_block(F&& f) {
  const auto& matrices = group_->matrices();
  for_each_source([&](size_t first, size_t last, int64_t begin, int64_t end) {
    const EncodedMatrix& any = matrices[first];
    const auto rows = read(*any.source, any.expert, begin, end);
    const auto k = static_cast<size_t>(any.k);
    for (size_t i = first; i < last; ++i) {
      const EncodedMatrix& m = matrices[i];
      const int64_t r0 = row_at(m, begin), r1 = row_at(m, end);
      if (r0 >= r1) continue;
      const auto count = static_cast<size_t>(r1 - r0),
                 at = static_cast<size_t>(m.first + r0 * m.step - begin);
      if (m.step == 1) {
        f(i, r0, rows.subspan(at * k, count * k));
        continue;
      }
      gathered_.resize(count * k);
      for (size_t r = 0; r < count; ++r) {
        std::copy_n(&rows[(at + r * static_cast<size_t>(m.step)) * k], k, &gathered_[r * k]);
      }
      f(i, r0, std::span<const float>(gathered_));
    }
  });
}

void Encoder::begin(const QuantizedGroup& group) {
  group_ = &group;
  rule_ = group.encode_rule();
  quantize_ = quantize_rule(rule_);
  held_ = {};  // an address may have been another module's
  surveys_.assign(group.matrices().size(), {});
}

GroupScale Encoder::first_pass(const QuantizedGroup& group) {
  begin(group);
  std::vector<EncodedResult> results(surveys_.size());
  const auto refuse = [&] {
    std::vector<std::string> lines;
    for (const EncodedResult& r : results) lines.insert(lines.end(), r.problems.begin(), r.problems.end());
    if (!lines.empty()) throw ErrorLines(std::move(lines));
  };
  survey(results);
  refuse();
  GroupScale scale;
  for (const AbsMaxPass& s : surveys_) scale.amax = std::max(scale.amax, s.amax);
  const bool cast = survey_mxfp4(results);
  if (!cast) choose_global_scales(results);
  refuse();
  for (EncodedResult& r : results) {
    std::move(r.findings.begin(), r.findings.end(), std::back_inserter(scale.findings));
  }
  scale.written = surveys_[0].scale.written;
  if (cast) {
    scale.exponent = range_.exponent();
    scale.written = std::ldexp(1.0f, rule_.divides ? -range_.exponent() : range_.exponent());
  }
  return scale;
}

std::vector<EncodedResult> Encoder::encode(const QuantizedGroup& group, const Write& write, bool only_check) {
  begin(group);
  const auto& matrices = group.matrices();
  std::vector<EncodedResult> results(matrices.size());
  survey(results);
  const bool sound = std::all_of(results.begin(), results.end(), [](auto& r) { return r.problems.empty(); });
  if (!sound || only_check) return results;
  const bool cast = survey_mxfp4(results);
  if (!rule_.fp8 && !cast) choose_global_scales(results);
  if (std::any_of(results.begin(), results.end(), [](auto& r) { return !r.problems.empty(); }))
    return results;

  if (cast) {
    cast_mxfp4(write);
  } else {
    for_each_row_block([&](size_t i, int64_t row, std::span<const float> rows) {
      if (rule_.fp8) {
        encode_fp8(matrices[i], surveys_[i], row, rows, write, results[i]);
      } else {
        encode_nvfp4(matrices[i], surveys_[i], row, rows, write, results[i]);
      }
    });
  }
  for (size_t i = 0; i < matrices.size(); ++i) {
    write_scalars(matrices[i], surveys_[i], write);
    write_bias(matrices[i], write);
    results[i].cast = cast;
    if (!rule_.fp8) results[i].global_scale = std::bit_cast<uint32_t>(surveys_[i].scale.written);
  }
  return results;
}

void Encoder::survey(std::vector<EncodedResult>& results) {
  std::vector<Hasher> hashers(results.size());
  const bool may_cast = can_cast();
  for_each_row_block([&](size_t i, int64_t row, std::span<const float> rows) {
    const EncodedMatrix& m = group_->matrices()[i];
    AbsMaxPass& survey = surveys_[i];
    EncodedResult& result = results[i];
    hashers[i].update(bytes_of(rows));
    const float amax = largest_magnitude(rows, isa_);
    if (!std::isfinite(amax)) {
      if (!result.problems.empty()) return;
      const auto at = std::find_if(rows.begin(), rows.end(), [](float x) { return !std::isfinite(x); });
      const int64_t place = at - rows.begin();
      result.problems.push_back(fmt::format(
          "{}: expected finite weights, found {} at{} row {}, k {}", source_.where(m.source->weight), *at,
          m.name == m.source->name ? "" : " " + m.name, row + place / m.k, place % m.k));
      return;
    }
    survey.amax = std::max(survey.amax, amax);
    if (may_cast) result.error.add(rows, rows, m.k, isa_);
    if (rule_.fp8) survey_fp8(m, row, rows, survey);
  });
  for (size_t at = 0; at < results.size(); ++at) {
    results[at].source = hashers[at].digest();
    for (float& scale : surveys_[at].scales) scale = fp8_scale_of(scale);
  }
}

void Encoder::survey_fp8(const EncodedMatrix& m, int64_t row, std::span<const float> rows,
                         AbsMaxPass& survey) {
  const auto k = static_cast<size_t>(m.k);
  if (rule_.granularity == Granularity::kTensor) {
    survey.scales.assign(1, survey.amax);
    return;
  }
  const bool block = rule_.granularity == Granularity::kBlock;
  const size_t width = block ? blocks_of(m.k) : 1;
  survey.scales.resize(block ? blocks_of(m.rows) * width : static_cast<size_t>(m.rows));
  for (size_t r = 0; r < rows.size() / k; ++r) {
    const size_t n = static_cast<size_t>(row) + r;
    for (size_t b = 0; b < width; ++b) {
      const size_t begin = b * kFp8Block, end = block ? std::min<size_t>(begin + kFp8Block, k) : k;
      float& largest = survey.scales[block ? n / kFp8Block * width + b : n];
      largest = std::max(largest, largest_magnitude(rows.subspan(r * k + begin, end - begin), isa_));
    }
  }
}

bool Encoder::can_cast() const {
  if (rule_.fp8 || rule_.prune) return false;
  return std::all_of(group_->matrices().begin(), group_->matrices().end(), [&](const EncodedMatrix& m) {
    return m.source->format == WeightFormat::kMxfp4 && !group_->kept().find(m.name);
  });
}

bool Encoder::survey_mxfp4(std::vector<EncodedResult>& results) {
  range_ = {};
  if (!can_cast()) return false;
  for_each_source([&](size_t i, size_t, int64_t begin, int64_t end) {
    read_mxfp4(group_->matrices()[i], begin, end);
    range_.add(raw_codes_, raw_scales_);
  });
  if (range_.is_exact()) return true;
  for (EncodedResult& r : results) r.error = {};
  results[0].findings.push_back(
      {Severity::kWarning, "mxfp4-not-exact", group_->matrices()[0].name,
       fmt::format("scales from 2^{} to 2^{} span more than NVFP4 holds without loss: quantized anew",
                   range_.low, range_.high)});
  return false;
}

void Encoder::read_mxfp4(const EncodedMatrix& matrix, int64_t begin, int64_t end) {
  const Linear& m = *matrix.source;
  const auto read = [&](size_t tensor, int64_t width, std::vector<uint8_t>& to) {
    to.resize(static_cast<size_t>((end - begin) * width));
    source_.read(tensor, static_cast<uint64_t>((matrix.expert * m.n + begin) * width), to);
    bytes_read_ += to.size();
  };
  read(m.weight, m.k / 2, raw_codes_);
  read(*m.scale, m.k / kMxGroup, raw_scales_);
}

void Encoder::choose_global_scales(std::vector<EncodedResult>& results) {
  float amax = 0;
  for (const AbsMaxPass& s : surveys_) amax = std::max(amax, s.amax);
  const MatrixScale shared = shared_scale(rule_, quantize_, amax);
  bool is_used = false;
  for (size_t at = 0; at < surveys_.size(); ++at) {
    const EncodedMatrix& m = group_->matrices()[at];
    const auto kept = kept_scale(rule_, quantize_, group_->kept(), m.name);
    surveys_[at].scale = kept.value_or(shared);
    is_used = is_used || !kept;
  }
  if (is_used) check_global_scale(group_->matrices()[0].name, amax, shared, results[0]);
}

void Encoder::check_global_scale(const std::string& name, float amax, const MatrixScale& scale,
                                 EncodedResult& result) const {
  const float multiplier = rule_.divides ? 1.0f / scale.written : scale.written;
  if (!(multiplier > 0) || !std::isfinite(multiplier) || !std::isfinite(scale.written)) {
    result.problems.push_back(fmt::format(
        "{}: expected weights with a global scale that fits float32, found none above {}", name, amax));
  }
  if (amax == 0) {
    result.findings.push_back({Severity::kWarning, "zero-weights", name,
                               "all weights that share the global scale are zero: codes and block scales are "
                               "0, the global scale 1"});
  } else if (is_overflow(quantize_, scale)) {
    result.findings.push_back(
        {Severity::kWarning, "global-scale-overflow", name,
         fmt::format("the global scale of weights up to {} is beyond {}: 1 is stored, as compressed-tensors "
                     "does, and little is left of the weights",
                     amax, dtype_name(quantize_.weight_type))});
  }
}

void Encoder::encode_nvfp4(const EncodedMatrix& m, const AbsMaxPass& survey, int64_t row,
                           std::span<const float> rows, const Write& write, EncodedResult& result) {
  QuantizeRule rule = quantize_;
  rule.zero_block = survey.scale.zero_block;
  const Arithmetic reads = rule_.divides ? Arithmetic::compressed_tensors : Arithmetic::modelopt;
  codes_.resize(rows.size() / 2);
  scales_.resize(rows.size() / kGroup);
  back_.resize(rows.size());
  std::span<const float> weights = rows;
  if (rule_.prune) {
    // The error of quantizing first and pruning afterwards.
    quantize_nvfp4(rule, survey.scale.global, rows, codes_.data(), scales_.data(), isa_);
    const CodeBlocks blocks{codes_.data(), scales_.data(), static_cast<int64_t>(scales_.size()), 1};
    prune_codes(PrunePattern::k2of4, blocks, codes_.data(), isa_);
    dequantize_nvfp4(reads, survey.scale.written, codes_.data(), scales_.data(), back_, isa_);
    result.pruned_after.add(rows, back_, m.k, isa_);
    pruned_.assign(rows.begin(), rows.end());
    prune_2_4(pruned_, isa_);
    weights = pruned_;
  }
  quantize_nvfp4(rule, survey.scale.global, weights, codes_.data(), scales_.data(), isa_);
  if (survey.scale.is_kept) restore_negative_zeros(weights, codes_);
  write(m.part(EncodedPart::kValues), codes_);
  write(m.part(EncodedPart::kScales), scales_);
  dequantize_nvfp4(reads, survey.scale.written, codes_.data(), scales_.data(), back_, isa_);
  result.error.add(rows, back_, m.k, isa_);
  if (kept_ != nullptr) kept_->compare(m.name, row, m.k, codes_, scales_, result.kept);
}

void Encoder::encode_fp8(const EncodedMatrix& m, const AbsMaxPass& survey, int64_t row,
                         std::span<const float> rows, const Write& write, EncodedResult& result) {
  codes_.resize(rows.size());
  back_.resize(rows.size());
  const auto k = static_cast<size_t>(m.k);
  const auto encode = [&](size_t begin, size_t count, float scale) {
    const std::span<uint8_t> bytes(&codes_[begin], count);
    twofour::encode_fp8(rows.subspan(begin, count), scale, bytes.data(), isa_);
    decode_fp8(bytes, scale, &back_[begin], isa_);
  };
  if (rule_.granularity == Granularity::kTensor) {
    encode(0, rows.size(), survey.scales[0]);
  } else {
    const bool block = rule_.granularity == Granularity::kBlock;
    const size_t width = block ? kFp8Block : k, blocks = block ? blocks_of(m.k) : 1;
    for (size_t r = 0; r < rows.size() / k; ++r) {
      const size_t n = static_cast<size_t>(row) + r, first = (block ? n / kFp8Block : n) * blocks;
      for (size_t b = 0; b < blocks; ++b) {
        encode(r * k + b * width, std::min(width, k - b * width), survey.scales[first + b]);
      }
    }
  }
  write(m.part(EncodedPart::kValues), codes_);
  result.error.add(rows, back_, m.k, isa_);
}

void Encoder::cast_mxfp4(const Write& write) {
  const float scale = std::ldexp(1.0f, range_.exponent());
  for (AbsMaxPass& s : surveys_) s.scale.written = rule_.divides ? 1.0f / scale : scale;
  for_each_source([&](size_t first, size_t last, int64_t begin, int64_t end) {
    read_mxfp4(group_->matrices()[first], begin, end);
    scales_.resize(2 * raw_scales_.size());
    cast_mxfp4_scales(raw_scales_, range_.exponent(), scales_.data());
    for (size_t i = first; i < last; ++i) {
      const EncodedMatrix& m = group_->matrices()[i];
      const int64_t r0 = row_at(m, begin), r1 = row_at(m, end);
      const auto rows_of = [&](const std::vector<uint8_t>& all, int64_t per_byte) {
        const auto width = static_cast<size_t>(m.k / per_byte);
        gathered_bytes_.resize(static_cast<size_t>(r1 - r0) * width);
        for (int64_t r = r0; r < r1; ++r) {
          std::copy_n(&all[static_cast<size_t>(m.first + r * m.step - begin) * width], width,
                      &gathered_bytes_[static_cast<size_t>(r - r0) * width]);
        }
        return std::span<const uint8_t>(gathered_bytes_);
      };
      if (r0 >= r1) continue;
      write(m.part(EncodedPart::kValues), rows_of(raw_codes_, 2));
      write(m.part(EncodedPart::kScales), rows_of(scales_, kGroup));
    }
  });
}

void Encoder::write_scalars(const EncodedMatrix& m, const AbsMaxPass& survey, const Write& write) {
  if (rule_.fp8) {
    write(m.part(EncodedPart::kScales), bytes_of(survey.scales));
    if (m.input_scale != 0) write(m.part(EncodedPart::kInputScale), bytes_of({&m.input_scale, 1}));
  } else {
    write(m.part(EncodedPart::kGlobalScale), bytes_of({&survey.scale.written, 1}));
  }
}

void Encoder::write_bias(const EncodedMatrix& m, const Write& write) {
  const int part = m.part(EncodedPart::kBias);
  if (part < 0) return;
  const Linear& w = *m.source;
  const auto width = static_cast<size_t>(dtype_bits(source_.tensors()[*w.bias].dtype)) / 8;
  std::vector<uint8_t> all(static_cast<size_t>(w.n) * width), own(static_cast<size_t>(m.rows) * width);
  source_.read(*w.bias, static_cast<uint64_t>(m.expert) * all.size(), all);
  bytes_read_ += all.size();
  for (int64_t r = 0; r < m.rows; ++r) {
    std::copy_n(&all[static_cast<size_t>(m.first + r * m.step) * width], width,
                &own[static_cast<size_t>(r) * width]);
  }
  write(part, own);
}

namespace {

class QuantizeWork : public Work {
 public:
  explicit QuantizeWork(const QuantizedGroup& group) : group_(group) {}

  void run(const Unit&, Worker& worker, Sink& sink) override {
    auto& encoder = worker.own<Encoder>();
    const uint64_t before = encoder.bytes_read();
    std::map<int, uint64_t> written;
    const auto write = [&](int part, std::span<const uint8_t> bytes) {
      sink.write(part, written[part], bytes);
      written[part] += bytes.size();
    };
    results_ = encoder.encode(group_, write, sink.only_checks());
    sink.add_read(encoder.bytes_read() - before);
    for (const EncodedResult& r : results_) {
      for (const std::string& problem : r.problems) sink.refuse(problem);
    }
    for (const auto& [part, bytes] : written) {
      check(bytes == group_.part_info(part).bytes(), "a tensor written whole");
    }
  }

  Json result(Sink&) override {
    Json json = Json::array();
    for (const EncodedResult& r : results_) json.push_back(to_json(r));
    return json;
  }

 private:
  const QuantizedGroup& group_;
  std::vector<EncodedResult> results_;
};

}  // namespace

std::unique_ptr<Work> QuantizedGroup::begin() const { return std::make_unique<QuantizeWork>(*this); }

}  // namespace twofour
