#include "formats/atom.h"
#include "formats/e4m3.h"
#include "lib/prove/validate/quantized/nvfp4_check.h"

namespace twofour {
namespace {

/// Computes e H e', where `mean` is H [k, k] or its diagonal [k].
double form_of(const ExpectedMean& mean, std::span<const float> e) {
  const std::vector<float>& h = mean.numbers;
  if (h.size() > e.size()) return expect_float_form(h, e) / mean.unit;
  double form = 0;
  for (size_t i = 0; i < e.size(); ++i) form += double{h[i]} * double{e[i]} * double{e[i]};
  return form / mean.unit;
}

bool has_pattern(std::span<const float> values, const ExpectedSolver& solver) {
  if (solver.dense) return true;
  const auto each = static_cast<size_t>(solver.group / 4);
  for (size_t first = 0; first < values.size(); first += 4 * each) {
    int kept = 0;
    for (size_t c = 0; c < 4; ++c) {
      const auto part = values.subspan(first + c * each, each);
      kept += std::any_of(part.begin(), part.end(), [](float v) { return v != 0; });
    }
    if (kept > 2) return false;
  }
  return true;
}

}  // namespace

Floats Nvfp4Check::targets(const EncodedMatrix& m, const SolvedHessian& h, int64_t begin, int64_t end) {
  Floats target = rows(m, begin, end);
  if (!has_target(m)) return target;
  Floats offset(target.size());
  encode_rule_.statistics->read_target_offset(*m.solving.target_offset, *m.solving.entry, begin, offset);
  const auto k = static_cast<size_t>(m.k);
  // The converter skips row blocks without any offset. Skipping single rows whose offset is 0 gives the same
  // result.
#pragma omp parallel for schedule(static)
  for (size_t r = 0; r < target.size() / k; ++r) {
    const auto row = std::span(offset).subspan(r * k, k);
    if (std::all_of(row.begin(), row.end(), [](float c) { return c == 0; })) continue;
    for (float& c : row) c = static_cast<float>(double{c} * h.mean.unit);
    h.inverse->multiply(row);
    for (size_t i = 0; i < k; ++i) target[r * k + i] += 0.5f * row[i];
  }
  return target;
}

float Nvfp4Check::largest_target(const EncodedMatrix& m) {
  float largest = 0;
  const auto h = proof_.hessians->of(*encode_rule_.statistics, m.solving);
  for_each_row_block(m, [&](int64_t begin, int64_t end) {
    for (const float w : targets(m, *h, begin, end)) largest = std::max(largest, std::fabs(w));
  });
  return largest;
}

bool Nvfp4Check::can_solve(float global) const {
  for (const unsigned scale : {1u, 126u}) {
    const float value = e4m3_to_float(scale), step = divides_ ? value / global : value * global;
    if (!(step > 0) || !std::isnormal(step) || !std::isnormal(1.0f / step)) return false;
  }
  return std::isnormal(global) && std::isnormal(1.0f / global);
}

ExpectedSolver Nvfp4Check::solver_of(const EncodedMatrix& m, const ExpectedGlobal& global) const {
  ExpectedSolver s;
  s.method = m.solving.method == Solving::Method::kFull ? ExpectedSolver::Method::kJoint
                                                        : ExpectedSolver::Method::kDiagonal;
  s.group = rule_.pattern.text() == "4:8-paired" ? 8 : 4;
  s.dense = rule_.pattern.empty();
  s.divides = divides_;
  s.global = global.written;
  const Floats zeros(kGroup);
  Bytes codes(kGroup / 2), scale(1);
  ExpectedNvfp4(arithmetic_, global).quantize(zeros, codes, scale);
  s.zero_scale = scale[0];
  s.highest = m.solving.scale_search;
  s.sweeps = m.solving.sweeps;
  return s;
}

void Nvfp4Check::check_solved(const EncodedMatrix& m, const ExpectedGlobal& global, EncodedResult& result) {
  const auto h = proof_.hessians->of(*encode_rule_.statistics, m.solving);
  const ExpectedSolver solver = solver_of(m, global);
  const auto k = static_cast<size_t>(m.k);
  result.output.method = solving_name(m.solving, !solver.dense);
  uint64_t not_drawn = 0;
  for (int64_t n = 0; n < m.rows; ++n) not_drawn += !is_drawn(m, n);
  proof_.add_solved(static_cast<uint64_t>(m.rows), not_drawn);
  for_each_row_block(m, [&](int64_t begin, int64_t end) {
    const Floats weights = rows(m, begin, end), target = targets(m, *h, begin, end);
    Bytes codes(weights.size() / 2), scales(weights.size() / kGroup);
    proof_.read(m.part(EncodedPart::kValues), static_cast<uint64_t>(begin * m.k / 2), codes);
    proof_.read(m.part(EncodedPart::kScales), static_cast<uint64_t>(begin * m.k / kGroup), scales);
    Bytes expected_codes = codes, expected_scales = scales;
    const Bytes mask = mask_rows(m, begin, end);
    const Floats back = read_back(m, begin, weights, codes, scales, global.written, result.error);
    const size_t count = weights.size() / k;
    std::vector<double> losses(count), energies(count);
    std::vector<double> other_losses(h->heldout.numbers.empty() ? 0 : count),
        other_energies = other_losses, expected_losses(h->fisher.numbers.empty() ? 0 : count);
    std::vector<char> broken(count);
    for_each_row(m, begin, weights, [&](std::span<const float> row, int64_t n, size_t r) {
      const auto values = std::span(back).subspan(r * k, k);
      Floats change(row.begin(), row.end());
      for (size_t i = 0; i < k; ++i) change[i] -= values[i];
      losses[r] = form_of(h->mean, change);
      energies[r] = form_of(h->mean, row);
      if (!h->fisher.numbers.empty()) expected_losses[r] = form_of(h->fisher, change);
      if (!h->heldout.numbers.empty()) {
        other_losses[r] = form_of(h->heldout, change);
        other_energies[r] = form_of(h->heldout, row);
      }
      broken[r] = !has_pattern(values, solver);
      if (!is_drawn(m, n)) return;
      const auto own = std::span<const float>(target).subspan(r * k, k);
      const auto kept = std::span(mask).subspan(mask.empty() ? 0 : r * k, mask.empty() ? 0 : k);
      const ExpectedRow solved = h->diagonal.empty() ? expect_row(solver, h->hessian, own, kept)
                                                     : expect_row_by_diagonal(solver, h->diagonal, own, kept);
      for (size_t i = 0; i < k / 2; ++i) {
        expected_codes[r * k / 2 + i] =
            static_cast<uint8_t>(solved.codes[2 * i] | solved.codes[2 * i + 1] << 4);
      }
      std::copy(solved.scales.begin(), solved.scales.end(),
                expected_scales.begin() + static_cast<ptrdiff_t>(r * k / kGroup));
    });
    for (const double loss : expected_losses) result.output.expected_loss += loss;
    for (size_t r = 0; r < other_losses.size(); ++r) {
      result.output.heldout_loss += other_losses[r];
      result.output.heldout_energy += other_energies[r];
    }
    for (size_t r = 0; r < losses.size(); ++r) {
      result.output.loss += losses[r];
      result.output.energy += energies[r];
      if (broken[r]) {
        proof_.differ(m.part(EncodedPart::kValues),
                      fmt::format("expected {} codes, found others in row {}", rule_.pattern.text(),
                                  begin + static_cast<int64_t>(r)));
        break;
      }
    }
    hold(m, EncodedPart::kValues, begin * m.k / 2, expected_codes, 2);
    hold(m, EncodedPart::kScales, begin * m.k / kGroup, expected_scales, kGroup);
  });
}

bool Nvfp4Check::is_drawn(const EncodedMatrix& m, int64_t n) const {
  constexpr int64_t kDrawn = 64;
  return proof_.all_rows || m.rows <= kDrawn || n * kDrawn / m.rows != (n + 1) * kDrawn / m.rows;
}

}  // namespace twofour
