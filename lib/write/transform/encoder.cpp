#include "lib/write/transform/encoder.h"

#include <fmt/format.h>

#include <bit>
#include <cmath>
#include <map>

#include "formats/half.h"
#include "kernels/device/check.h"
#include "lib/base/findings/problems.h"
#include "lib/base/io/file.h"
#include "lib/base/threads/interrupt.h"
#include "lib/write/encode/quantized_group.h"

namespace twofour {

void check_encoder_interrupt() { check_interrupt(); }

std::span<const float> Encoder::read(const Linear& m, int64_t expert, int64_t begin, int64_t end) {
  const auto count = static_cast<size_t>((end - begin) * m.k);
  const RowBlock row_block{&m, expert, begin, end};
  if (held_ != row_block) {
    held_ = {};  // empty in case reading fails
    if (rows_.size() < count) rows_.resize(count);
    reader_.read_rows(m, expert, begin, end, std::span(rows_).first(count));
    held_ = row_block;
  }
  return std::span<const float>(rows_).first(count);
}

Encoder::StoredBlock Encoder::stored_rows(const EncodedMatrix& m, const StoredRows& all, int64_t begin,
                                          int64_t end) {
  return {rows_of(m, all.weights, m.k / 2, begin, end, gathered_values_),
          rows_of(m, all.scales, m.k / m.source->scale_cols, begin, end, gathered_scales_)};
}

namespace {

bool is_sound(const std::vector<EncodedResult>& results) {
  return std::all_of(results.begin(), results.end(), [](auto& r) { return r.problems.empty(); });
}

}  // namespace

void Encoder::begin(const QuantizedGroup& group) {
  group_ = &group;
  rule_ = group.encode_rule();
  quantize_ = quantize_rule(rule_);
  held_ = {};  // another module may have had the same address
  may_cast_ = may_cast();
  const auto& all = group.matrices();
  reads_stored_ =
      may_cast_ || std::any_of(all.begin(), all.end(), [&](auto& m) { return rule_.masks_codes(m); });
  from_mxfp4_ = may_cast_ && is_from(WeightFormat::kMxfp4);
  is_cast_ = false;
  range_ = {};
  surveys_.assign(group.matrices().size(), {});
}

GroupScale Encoder::survey(const QuantizedGroup& group) {
  begin(group);
  Results results(surveys_.size());
  const auto refuse = [&] {
    std::vector<std::string> lines;
    for (const EncodedResult& r : results) lines.insert(lines.end(), r.problems.begin(), r.problems.end());
    if (!lines.empty()) throw ErrorLines(std::move(lines));
  };
  survey_all(results);
  refuse();
  prepare(results);
  refuse();
  GroupScale scale;
  for (const Survey& s : surveys_) scale.amax = std::max(scale.amax, s.amax);
  scale.written = surveys_[0].scale.written;
  if (is_cast_) {
    scale.exponent = range_.exponent();
    scale.written = std::ldexp(1.0f, rule_.divides ? -range_.exponent() : range_.exponent());
  }
  for (EncodedResult& r : results) {
    std::move(r.findings.begin(), r.findings.end(), std::back_inserter(scale.findings));
  }
  return scale;
}

std::vector<EncodedResult> Encoder::encode(const QuantizedGroup& group, const Write& write, bool only_check) {
  if (const EncodedBefore* before = group.encode_rule().encoded.get(); before && !only_check && !kept_) {
    if (auto results = before->read(group, write)) {
      for (const Unit& unit : group.units(source_)) bytes_read_ += unit.read;  // counted, not read
      return std::move(*results);
    }
  }
  begin(group);
  Results results(group.matrices().size());
  survey_all(results);
  if (!is_sound(results)) return results;
  if (only_check) {
    check_statistics();
    return results;
  }
  prepare(results);
  if (!is_sound(results)) return results;
  if (rule_.is_strict() && !is_from(WeightFormat::kFloat)) {
    Results tried = results;
    write_all([](int, std::span<const uint8_t>) {}, tried);
    refuse_loss(tried);
    if (!is_sound(tried)) return tried;
    for (Survey& s : surveys_) {
      for (Tile& tile : s.tiles) tile.is_inexact = false;
    }
  }
  write_all(write, results);
  return results;
}

void Encoder::check_statistics() {
  for (const EncodedMatrix& m : group_->matrices()) {
    if (m.solving.method != Solving::Method::kPlain) solver_.begin(rule_, m);
  }
}

bool Encoder::is_from(WeightFormat format) const {
  const auto& all = group_->matrices();
  return std::all_of(all.begin(), all.end(), [&](auto& m) { return m.source->format == format; });
}

bool Encoder::may_cast() const {
  if (!rule_.casts() || rule_.prune || rule_.pattern) return false;
  if (rule_.is_tiled() && is_from(WeightFormat::kNvfp4)) return true;
  const auto& all = group_->matrices();
  return is_from(WeightFormat::kMxfp4) &&
         std::none_of(all.begin(), all.end(), [&](auto& m) { return group_->kept().find(m.name); });
}

void Encoder::survey_all(Results& results) {
  std::vector<Hasher> hashers(results.size());
  for_each_row_block([&](size_t i, int64_t row, std::span<const float> rows, const StoredBlock& stored) {
    const EncodedMatrix& m = group_->matrices()[i];
    Survey& survey = surveys_[i];
    EncodedResult& result = results[i];
    hashers[i].update(bytes_of(rows));
    float amax = largest_magnitude(rows, isa_);
    if (!(amax < kBeyondBf16)) {
      if (!result.problems.empty()) return;
      const auto at =
          std::find_if(rows.begin(), rows.end(), [](float x) { return !(std::fabs(x) < kBeyondBf16); });
      const int64_t place = at - rows.begin();
      result.problems.push_back(
          fmt::format("{}: expected finite weights{}, found {} at{} row {}, k {}",
                      source_.where(m.source->weight), std::isfinite(*at) ? " within BF16" : "", *at,
                      m.name == m.source->name ? "" : " " + m.name, row + place / m.k, place % m.k));
      return;
    }
    std::span<const float> target = rows;
    if (m.solving.target_offset) {
      target = target_of(m, row, rows);
      survey.targets.add(rows, target);
      amax = largest_magnitude(target, isa_);
    }
    survey.amax = std::max(survey.amax, amax);
    if (from_mxfp4_) result.error.add_exact(rows, m.k, isa_);
    if (rule_.is_tiled()) survey_fp8(m, row, target, survey);
    if (may_cast_) survey_stored(m, row, stored, survey);
  });
  for (size_t at = 0; at < results.size(); ++at) results[at].source = hashers[at].digest();
  check_targets(results);
}

void Encoder::check_targets(Results& results) const {
  for (size_t i = 0; i < results.size(); ++i) {
    const EncodedMatrix& m = group_->matrices()[i];
    if (!m.solving.target_offset) continue;
    const TargetExtent& targets = surveys_[i].targets;
    if (const std::string excess = targets.find_excess(); !excess.empty()) {
      const Statistics& s = *rule_.statistics;
      results[i].problems.push_back(
          fmt::format("{}: {}: {}", s.path().string(), s.tensors()[*m.solving.target_offset].name, excess));
    } else if (const double change = targets.relative_change(); change > 1) {
      results[i].findings.push_back({Severity::kWarning, "far-target", m.name,
                                     fmt::format("the target of its statistics differs from the weights by "
                                                 "{:.3g} times their norm, so little of them remains",
                                                 change)});
    }
  }
}

void Encoder::survey_stored(const EncodedMatrix& m, int64_t row, const StoredBlock& block, Survey& survey) {
  if (rule_.is_tiled()) {
    survey_tiles(m, row, block, survey);
  } else if (rule_.is_nvfp4()) {
    range_.add(block.values, block.scales);
  }
}

void Encoder::prepare(Results& results) {
  if (rule_.is_tiled()) {
    choose_tile_scales(results);
    note_unsolved(results);
  } else if (rule_.is_mx()) {
    is_cast_ = may_cast_;
    note_unsolved(results);
  } else {
    is_cast_ = may_cast_ && can_cast_to_nvfp4(results);
    if (!is_cast_) choose_global_scales(results);
  }
}

void Encoder::write_all(const Write& write, Results& results) {
  const auto& matrices = group_->matrices();
  if (is_cast_) {
    rule_.is_mx() ? cast_to_mx(write) : cast_to_nvfp4(write, results);
  } else if (rule_.is_tiled() && from_mxfp4_) {
    cast_to_fp8(write, results);
  } else {
    for_each_row_block([&](size_t i, int64_t row, std::span<const float> rows, const StoredBlock& stored) {
      if (rule_.masks_codes(matrices[i])) {
        encode_masked(matrices[i], surveys_[i], row, rows, stored, write, results[i]);
      } else if (rule_.is_tiled()) {
        encode_fp8(matrices[i], surveys_[i], row, rows, write, results[i]);
      } else if (rule_.is_mx()) {
        encode_mx(matrices[i], surveys_[i], row, rows, write, results[i]);
      } else {
        encode_nvfp4(matrices[i], surveys_[i], row, rows, write, results[i]);
      }
    });
  }
  for (size_t i = 0; i < matrices.size(); ++i) {
    results[i].cast = is_cast_;
    if (rule_.is_nvfp4()) {
      const float& global = surveys_[i].scale.written;
      write(matrices[i].part(EncodedPart::kGlobalScale), bytes_of({&global, 1}));
      results[i].global_scale = std::bit_cast<uint32_t>(global);
    }
    if (rule_.is_tiled()) write_tile_scales(matrices[i], surveys_[i], write);
    const float& input_scale = matrices[i].input_scale;
    if (input_scale != 0) write(matrices[i].part(EncodedPart::kInputScale), bytes_of({&input_scale, 1}));
    write_bias(matrices[i], write);
  }
  if (rule_.is_tiled() && may_cast_) count_tiles(results);
}

void Encoder::refuse_loss(Results& results) {
  for (size_t i = 0; i < results.size(); ++i) {
    const EncodedMatrix& m = group_->matrices()[i];
    std::string found;
    const auto& tiles = surveys_[i].tiles;
    const auto inexact = std::find_if(tiles.begin(), tiles.end(), [](const Tile& t) { return t.is_inexact; });
    if (inexact != tiles.end()) {
      found = fmt::format("{} of {} tiles with others, the first {}", results[i].tiles.inexact,
                          results[i].tiles.count,
                          tile_text(m, surveys_[i], static_cast<size_t>(inexact - tiles.begin())));
    } else if (results[i].error.error > 0) {
      found = fmt::format("others, and no exact cast from {}", m.source->format->name);
    } else {
      continue;
    }
    results[i].problems.push_back(
        fmt::format("{}: expected weights that {} stores without loss ({}), found {}", m.name,
                    encoded_name(rule_), rule_.settings->name(keys::kExact, "strict"), found));
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
    try {
      results_ = encoder.encode(group_, write, sink.only_checks());
    } catch (const ReadError&) {
      throw;
    } catch (const Error& error) {
      for (const std::string& line : lines_of(error)) sink.refuse(line);
      return;
    }
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
