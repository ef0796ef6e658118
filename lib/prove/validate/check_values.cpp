#include "lib/prove/validate/checks.h"

#include <fmt/format.h>

#include <cmath>
#include <map>
#include <set>

#include "lib/look/metrics/matrix_pair.h"
#include "lib/look/metrics/row_blocks.h"
#include "lib/prove/validate/check_layers.h"

namespace twofour {
namespace {

struct RowBlockResult {
  ValueError error;
  std::string failure;
};

class Comparison {
 public:
  Comparison(const Matrices& source, const Matrices& other, double tolerance, Progress& progress,
             Findings& findings)
      : source_(source), other_(other), tolerance_(tolerance), progress_(progress), findings_(findings) {}

  void add(const std::string& name, const StoredMatrix& ours) {
    const Linear& m = source_.module_of(ours);
    const auto at = other_.all().find(name);
    if (at == other_.all().end()) {
      findings_.push_back(
          {Severity::kWarning, "not-compared", source_.name_in_files(name, ours),
           fmt::format("expected it in {}, found none", other_.checkpoint().path().string())});
      return;
    }
    const StoredMatrix& theirs = at->second;
    const Linear& t = other_.module_of(theirs);
    if (theirs.count != ours.count || t.k != m.k) {
      findings_.push_back({Severity::kWarning, "not-compared", source_.name_in_files(name, ours),
                           fmt::format("expected [{}, {}] in {}, found [{}, {}]", ours.count, m.k,
                                       other_.checkpoint().path().string(), theirs.count, t.k)});
      return;
    }
    progress_.total += stored_bytes(source_, ours, ours.count) + stored_bytes(other_, theirs, ours.count);
    items_.push_back({pairs_.size(), ours.count, block_rows(m.k)});
    pairs_.push_back({&ours, &theirs});
  }

  std::vector<ValueReport> run() {
    std::set<size_t> failed;              // modules of the source that failed; one failure of each is
                                          // reported
    std::map<size_t, ValueError> errors;  // by index of the source's module, in natural order
    const auto make_worker = [&] {
      return
          [this, reader = PairReader(source_, other_)](const RowBlock& s) mutable { return work(reader, s); };
    };
    for_each_row_block<RowBlockResult>(items_, make_worker, [&](const RowBlock& s, RowBlockResult result) {
      const size_t module = pairs_[s.item].a->module;
      errors[module] += result.error;
      if (!result.failure.empty() && failed.insert(module).second) {
        findings_.push_back({Severity::kError, "values", source_.modules()[module].name, result.failure});
      }
    });
    std::vector<ValueReport> reports;
    for (const auto& [module, error] : errors) {
      const Linear& m = source_.modules()[module];
      reports.push_back({m.name, m.e, m.n, m.k, error});
    }
    return reports;
  }

 private:
  RowBlockResult work(PairReader& reader, const RowBlock& s) {
    const MatrixPair& pair = pairs_[s.item];
    const int64_t rows = s.end - s.begin;
    progress_.done += stored_bytes(source_, *pair.a, rows) + stored_bytes(other_, *pair.b, rows);
    RowBlockResult result{reader.compare(pair, s.begin, s.end, tolerance_), {}};
    // The place is in the source's module, where gate and up of a stack are together.
    if (result.error.first.e >= 0) {
      result.error.first.n = pair.a->first + result.error.first.n * pair.a->step;
    }
    return result;
  }

  const Matrices &source_, &other_;
  double tolerance_;
  Progress& progress_;
  Findings& findings_;
  std::vector<MatrixPair> pairs_;
  std::vector<RowBlockItem> items_;
};

void check_tolerance(const ValueReport& r, double tolerance, ValidateReport& report) {
  if (r.error.beyond == 0) return;
  const WeightDifference& d = r.error.first;
  report.differences.push_back(
      {Severity::kError, "values", r.module,
       fmt::format("{} of {} weights differ from the source's by more than {:.2g} (relative), the first at "
                   "expert {}, "
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
  std::map<double, std::set<size_t>> by_tolerance;  // tensors of the source
  std::set<size_t> changed;
  for (const auto& transformation : plan.transformations) {
    const auto comparison = transformation->value_comparison();
    if (!comparison) continue;
    const std::vector<size_t> sources = transformation->sources();
    changed.insert(sources.begin(), sources.end());
    if (comparison->tolerance) by_tolerance[*comparison->tolerance].insert(sources.begin(), sources.end());
  }
  if (changed.empty()) return;
  const auto filter_of = [](const std::set<size_t>& tensors) -> ModuleFilter {
    return [&tensors](const Linear& m) {
      return tensors.contains(m.weight) || (m.scale && tensors.contains(*m.scale)) ||
             (m.global_scale && tensors.contains(*m.global_scale));
    };
  };
  Findings findings;
  Matrices ours(source, findings), theirs(artifact, findings);
  ours.add_tables_of(theirs);
  theirs.add_tables_of(ours);
  progress.phase = "comparing weights";
  for (const auto& [tolerance, tensors] : by_tolerance) {
    const std::vector<ValueReport> values =
        compare_values(ours, theirs, filter_of(tensors), tolerance, progress, findings);
    for (const ValueReport& r : values) {
      if (std::isfinite(tolerance)) check_tolerance(r, tolerance, report);
    }
    report.values.insert(report.values.end(), values.begin(), values.end());
  }
  progress.phase = "running layers";
  if (options.tokens > 0) {
    run_stored_layers(ours, theirs, filter_of(changed), options, findings, report.layers, report.coverage);
  }
  for (Finding& f : findings) {
    (f.severity == Severity::kError ? report.differences : report.notes).push_back(std::move(f));
  }
}

}  // namespace twofour
