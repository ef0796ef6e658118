#include "lib/value_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <limits>
#include <set>

#include "formats/error.h"
#include "lib/interrupt.h"
#include "lib/stored_layers.h"

namespace twofour {
namespace {

/// Weights that a thread compares at once: 4 MB of each checkpoint in float32.
constexpr int64_t kStripWeights = 1 << 20;
/// Strips whose sums are held before they are added up, in order.
constexpr size_t kBatch = 4096;

/// Rows of a matrix that both checkpoints have.
struct Strip {
  const StoredMatrix *ours, *theirs;
  int64_t n0, n1;
};
struct StripResult {
  ValueError error;
  std::string failure;
};

/// Bytes of some rows' weights, without scales.
uint64_t stored_bytes(const Matrices& matrices, const StoredMatrix& s, int64_t rows) {
  const WeightModule& m = matrices.module_of(s);
  return matrices.checkpoint().tensors()[m.weight].bytes() / static_cast<uint64_t>(m.e * m.n) *
         static_cast<uint64_t>(rows);
}

class Comparison {
 public:
  Comparison(const Matrices& source, const Matrices& other, double tolerance, Progress& progress,
             Findings& findings)
      : source_(source), other_(other), tolerance_(tolerance), progress_(progress), findings_(findings) {}

  void add(const std::string& name, const StoredMatrix& ours) {
    const WeightModule& m = source_.module_of(ours);
    const auto at = other_.all().find(name);
    if (at == other_.all().end()) {
      findings_.push_back(
          {Severity::kWarning, "not-compared", name,
           fmt::format("expected it in {}, found none", other_.checkpoint().path().string())});
      return;
    }
    const StoredMatrix& theirs = at->second;
    const WeightModule& t = other_.module_of(theirs);
    if (theirs.count != ours.count || t.k != m.k) {
      findings_.push_back({Severity::kWarning, "not-compared", name,
                           fmt::format("expected [{}, {}] in {}, found [{}, {}]", ours.count, m.k,
                                       other_.checkpoint().path().string(), theirs.count, t.k)});
      return;
    }
    progress_.total += stored_bytes(source_, ours, ours.count) + stored_bytes(other_, theirs, ours.count);
    pairs_.push_back({&ours, &theirs, 0, ours.count});
  }

  std::vector<ValueReport> run() {
    for (const Strip& pair : pairs_) {
      const int64_t step = std::max<int64_t>(1, kStripWeights / source_.module_of(*pair.ours).k);
      for (int64_t n = 0; n < pair.n1; n += step) {
        strips_.push_back({pair.ours, pair.theirs, n, std::min(pair.n1, n + step)});
        if (strips_.size() == kBatch) flush();
      }
    }
    flush();
    std::vector<ValueReport> reports;
    for (const auto& [module, error] : errors_) {
      const WeightModule& m = source_.modules()[module];
      reports.push_back({m.name, m.e, m.n, m.k, error});
    }
    return reports;
  }

 private:
  void flush() {
    std::vector<StripResult> results(strips_.size());
    const auto count = static_cast<int64_t>(strips_.size());
    std::exception_ptr stop;
#pragma omp parallel
    {
      WeightReader ours(source_.checkpoint()), theirs(other_.checkpoint());
      std::vector<float> a, b;
#pragma omp for schedule(dynamic)
      for (int64_t i = 0; i < count; ++i) {
        try {
          const Strip& s = strips_[static_cast<size_t>(i)];
          progress_.done +=
              stored_bytes(source_, *s.ours, s.n1 - s.n0) + stored_bytes(other_, *s.theirs, s.n1 - s.n0);
          compare(s, ours, theirs, a, b, results[static_cast<size_t>(i)]);
        } catch (const Error& e) {
          results[static_cast<size_t>(i)].failure = e.what();
        } catch (...) {
#pragma omp critical
          stop = std::current_exception();
        }
      }
    }
    if (stop) std::rethrow_exception(stop);
    for (size_t i = 0; i < results.size(); ++i) {
      errors_[strips_[i].ours->module] += results[i].error;
      if (!results[i].failure.empty() && failed_.insert(strips_[i].ours->module).second) {
        findings_.push_back(
            {Severity::kError, "values", source_.module_of(*strips_[i].ours).name, results[i].failure});
      }
    }
    strips_.clear();
  }

  void compare(const Strip& s, WeightReader& ours, WeightReader& theirs, std::vector<float>& a,
               std::vector<float>& b, StripResult& result) const {
    check_interrupt();
    const int64_t k = source_.module_of(*s.ours).k;
    a.resize(static_cast<size_t>((s.n1 - s.n0) * k));
    b.resize(a.size());
    source_.read(ours, *s.ours, s.n0, s.n1, a);
    other_.read(theirs, *s.theirs, s.n0, s.n1, b);
    for (int64_t n = s.n0; n < s.n1; ++n) {
      const auto at = static_cast<size_t>((n - s.n0) * k), width = static_cast<size_t>(k);
      result.error.add_row(std::span(a).subspan(at, width), std::span(b).subspan(at, width), s.ours->e,
                           s.ours->first + n * s.ours->step, tolerance_);
    }
  }

  const Matrices &source_, &other_;
  double tolerance_;
  Progress& progress_;
  Findings& findings_;
  std::vector<Strip> pairs_;  ///< whole matrices
  std::vector<Strip> strips_;
  std::set<size_t> failed_;              ///< modules of the source; one failure each is told
  std::map<size_t, ValueError> errors_;  ///< by the source's module, which are in natural order
};

/// How far a weight may lie from the source's, relative to it; nothing where the rewrite is meant to lose.
std::optional<double> tolerance_of(const Recipe& recipe) {
  switch (rewrite_of(recipe.layout)) {
    case Rewrite::kNvfp4:
      return 0x1p-22;  // a last bit of the multiplier and two roundings
    case Rewrite::kBf16:
      return 0x1p-8;  // half a last bit
    case Rewrite::kPrune:
    case Rewrite::kFp8:
    case Rewrite::kQuantize:
    case Rewrite::kNone:
      break;
  }
  return std::nullopt;
}

void check_tolerance(const ValueReport& r, double tolerance, ValidateReport& report) {
  if (r.error.beyond == 0) return;
  const WeightDifference& d = r.error.first;
  report.differences.push_back(
      {Severity::kError, "values", r.module,
       fmt::format(
           "{} of {} weights lie further from the source's than {:.2g} of them, the first at expert {}, "
           "n {}, k {}: expected {}, found {}",
           r.error.beyond, r.error.weights, tolerance, d.e, d.n, d.k, d.expected, d.found)});
}

}  // namespace

std::vector<ValueReport> compare_values(const Matrices& source, const Matrices& other,
                                        const ModuleFilter& filter, double tolerance, Progress& progress,
                                        Findings& findings) {
  Comparison comparison(source, other, tolerance, progress, findings);
  for (const auto& [name, matrix] : source.all()) {
    if (filter(source.module_of(matrix))) comparison.add(name, matrix);
  }
  return comparison.run();
}

void check_values(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                  const ValidateOptions& options, Progress& progress, ValidateReport& report) {
  std::set<size_t> changed(plan.merged.begin(), plan.merged.end());
  for (const OutputTensor& t : plan.tensors) {
    if (t.kind == OutputTensor::Kind::kDerived) changed.insert(t.source);
  }
  for (const WeightModule& m : plan.weights) changed.insert(m.weight);
  const ModuleFilter filter = [&](const WeightModule& m) {
    return changed.contains(m.weight) || (m.scale && changed.contains(*m.scale)) ||
           (m.global_scale && changed.contains(*m.global_scale));
  };
  Findings findings;
  const Matrices ours(source, findings), theirs(artifact, findings);
  // Pruning has figures of its own, by exact integers.
  if (rewrite_of(plan.recipe.layout) != Rewrite::kPrune) {
    const auto tolerance = tolerance_of(plan.recipe);
    progress.phase = "comparing weights";
    report.values =
        compare_values(ours, theirs, filter, tolerance.value_or(std::numeric_limits<double>::infinity()),
                       progress, findings);
    for (const ValueReport& r : report.values) {
      if (tolerance) check_tolerance(r, *tolerance, report);
    }
  }
  progress.phase = "running layers";
  if (options.tokens > 0) run_stored_layers(ours, theirs, filter, options, findings, report.layers);
  for (Finding& f : findings) {
    (f.severity == Severity::kError ? report.differences : report.notes).push_back(std::move(f));
  }
}

}  // namespace twofour
