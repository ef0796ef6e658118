#include "lib/prove/validate/quantized/solved_check.h"

#include "lib/prove/validate/solved_hessians.h"

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

Floats SolvedCheck::targets(const EncodedMatrix& m, const SolvedHessian& h, int64_t begin, int64_t end) {
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

Floats SolvedCheck::aims(const EncodedMatrix& m, int64_t begin, int64_t end) {
  if (!has_target(m)) return rows(m, begin, end);
  return targets(m, *proof_.hessians->of(*encode_rule_.statistics, m.solving), begin, end);
}

float SolvedCheck::largest_of(const EncodedMatrix& m, EncodedResult& result) {
  float largest = survey(m, result);
  if (has_target(m)) {
    largest = 0;
    for_each_row_block(m, [&](int64_t begin, int64_t end) {
      for (const float w : aims(m, begin, end)) largest = std::max(largest, std::fabs(w));
    });
  }
  return largest_[&m] = largest;
}

bool SolvedCheck::is_solved(const EncodedMatrix& m) const {
  const float largest = known_largest(m);
  return m.solving.method != Solving::Method::kPlain && !casts(m) && largest >= std::ldexp(1.0f, -40) &&
         largest <= std::ldexp(1.0f, 40);
}

ExpectedSolver SolvedCheck::solver_of(const EncodedMatrix& m) const {
  ExpectedSolver s;
  s.method = m.solving.method == Solving::Method::kFull ? ExpectedSolver::Method::kJoint
                                                        : ExpectedSolver::Method::kDiagonal;
  s.group = rule_.pattern.text() == "4:8-paired" ? 8 : 4;
  s.dense = rule_.pattern.empty();
  s.highest = m.solving.scale_search;
  s.sweeps = m.solving.sweeps;
  return s;
}

Bytes SolvedCheck::mask_rows(const EncodedMatrix& m, int64_t begin, int64_t end) const {
  const MaskFile* masks = encode_rule_.masks.get();
  if (masks == nullptr) return {};
  Bytes mask(static_cast<size_t>((end - begin) * m.k));
  masks->read(masks->find(m.name).value(), begin, mask);
  return mask;
}

void SolvedCheck::check_solved(const EncodedMatrix& m, const Solved& form, EncodedResult& result) {
  const auto h = proof_.hessians->of(*encode_rule_.statistics, m.solving);
  const ExpectedSolver& solver = form.solver;
  const auto k = static_cast<size_t>(m.k), code_bytes = k * form.bits / 8,
             scale_bytes = form.block == 0 ? 0 : k / form.block;
  result.output.method = solving_name(m.solving, !solver.dense);
  uint64_t not_drawn = 0;
  for (int64_t n = 0; n < m.rows; ++n) not_drawn += !is_drawn(m, n);
  proof_.add_solved(static_cast<uint64_t>(m.rows), not_drawn);
  for_each_row_block(m, [&](int64_t begin, int64_t end) {
    const Floats weights = rows(m, begin, end), target = targets(m, *h, begin, end);
    const size_t count = weights.size() / k;
    const auto first_code = begin * static_cast<int64_t>(code_bytes),
               first_scale = begin * static_cast<int64_t>(scale_bytes);
    Bytes codes(count * code_bytes), scales(count * scale_bytes);
    proof_.read(m.part(EncodedPart::kValues), static_cast<uint64_t>(first_code), codes);
    if (scale_bytes > 0)
      proof_.read(m.part(EncodedPart::kScales), static_cast<uint64_t>(first_scale), scales);
    Bytes expected_codes = codes, expected_scales = scales;
    const Bytes mask = mask_rows(m, begin, end);
    Floats back(weights.size());
    std::vector<RowError> errors(count);
    std::vector<double> losses(count), energies(count);
    std::vector<double> other_losses(h->heldout.numbers.empty() ? 0 : count),
        other_energies = other_losses, expected_losses(h->fisher.numbers.empty() ? 0 : count);
    std::vector<char> broken(count);
    for_each_row(m, begin, weights, [&](std::span<const float> row, int64_t n, size_t r) {
      const auto values = std::span(back).subspan(r * k, k);
      form.decode(std::span(codes).subspan(r * code_bytes, code_bytes),
                  std::span(scales).subspan(r * scale_bytes, scale_bytes), n, values);
      errors[r] = row_error(row, values);
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
      ExpectedSolver of_row = solver;
      if (form.give_steps) form.give_steps(of_row, n);
      const ExpectedRow solved = h->diagonal.empty() ? expect_row(of_row, h->hessian, own, kept)
                                                     : expect_row_by_diagonal(of_row, h->diagonal, own, kept);
      const Bytes packed = pack_expected(form.bits, solved.codes);
      std::copy(packed.begin(), packed.end(),
                expected_codes.begin() + static_cast<ptrdiff_t>(r * code_bytes));
      for (size_t i = 0; i < scale_bytes; ++i) expected_scales[r * scale_bytes + i] = solved.scales[i];
    });
    add(errors, result.error);
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
    const auto bytes = static_cast<int64_t>(form.bits == 6 ? 3 : 1);
    hold(m, EncodedPart::kValues, first_code, expected_codes, bytes * 8 / static_cast<int64_t>(form.bits),
         bytes);
    if (scale_bytes > 0)
      hold(m, EncodedPart::kScales, first_scale, expected_scales, static_cast<int64_t>(form.block));
  });
}

bool SolvedCheck::is_drawn(const EncodedMatrix& m, int64_t n) const {
  constexpr int64_t kDrawn = 64;
  return proof_.all_rows || m.rows <= kDrawn || n * kDrawn / m.rows != (n + 1) * kDrawn / m.rows;
}

}  // namespace twofour
