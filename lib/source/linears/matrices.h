#pragma once
#include <map>
#include <string>
#include <vector>

#include "lib/base/findings/finding.h"
#include "lib/base/names/natural.h"
#include "lib/source/linears/linears.h"
#include "lib/source/linears/weight_terms.h"

namespace twofour {

/// A matrix [count, K] within a stored module. Row i of the matrix is row first + i * step of the module's
/// expert e.
struct StoredMatrix {
  size_t module;  ///< position in Matrices::modules()
  int64_t e;
  int64_t first, step, count;
};

/// The gate, up and down matrices of one expert, a shared expert or an MLP; nullptr: the matrix is missing.
struct StoredExpert {
  const StoredMatrix *gate = nullptr, *up = nullptr, *down = nullptr;
};

/// Reads rows [n0, n1) of a matrix in `module` as float32.
void read_stored_rows(WeightReader& reader, const Linear& module, const StoredMatrix& matrix, int64_t n0,
                      int64_t n1, std::span<float> out);

/// The linears of a checkpoint, matrix by matrix, under names that do not depend on how they are stored. For
/// example, the stack of gate and up in block P gives "P.3.gate_proj" and "P.3.up_proj" for expert 3, as if
/// each expert had its own tensors.
class Matrices {
 public:
  struct NaturalOrder {
    bool operator()(const std::string& a, const std::string& b) const { return natural_less(a, b); }
  };
  using Map = std::map<std::string, StoredMatrix, NaturalOrder>;
  using Blocks = std::map<std::string, std::map<int64_t, StoredExpert>, NaturalOrder>;

  /// Adds findings about modules that cannot be read, and about modules whose weights have a term
  /// (WeightTerm).
  Matrices(const Checkpoint& checkpoint, Findings& findings);
  /// Adds float embeddings that are quantized in `other`, so that the values of both can be compared.
  void add_tables_of(const Matrices& other);
  Matrices(const Matrices&) = delete;
  Matrices& operator=(const Matrices&) = delete;

  const Checkpoint& checkpoint() const { return checkpoint_; }
  const std::vector<Linear>& modules() const { return modules_; }
  const Linear& module_of(const StoredMatrix& m) const { return modules_[m.module]; }
  /// Why a module, or a matrix of a stack, is not read; nullptr: it is read.
  const std::string* why_left_out(std::string_view name) const;
  /// "NVFP4", "MXFP4", "FP8" or, for floats, the name of their type: "BF16".
  std::string format_of(const Linear& module) const;
  const Map& all() const { return all_; }
  /// The name that a matrix of all() has in the files: its module's name, or `name` if it is a part of a
  /// stack.
  const std::string& name_in_files(const std::string& name, const StoredMatrix& matrix) const {
    const Linear& m = module_of(matrix);
    return m.stacked || matrix.count != m.n ? name : m.name;
  }
  /// Feed-forward blocks by their prefix P, each with its experts by number.
  const Blocks& blocks() const { return blocks_; }

  /// Reads rows [n0, n1) of a matrix as float32.
  void read(WeightReader& reader, const StoredMatrix& matrix, int64_t n0, int64_t n1,
            std::span<float> out) const {
    read_stored_rows(reader, module_of(matrix), matrix, n0, n1, out);
  }

 private:
  void add(size_t module, Findings& findings);

  const Checkpoint& checkpoint_;
  std::vector<Linear> modules_;
  struct LeftOut {
    WeightTerm term;
    std::string why;
  };
  std::vector<LeftOut> left_out_;  ///< matrices that are not read because of tensors beside them
  std::vector<std::string> odd_;   ///< reasons why modules cannot be read, "FILE: TENSOR: ..."
  std::string all_left_out_;       ///< the reason why no module is read
  Map all_;
  Blocks blocks_;
};

}  // namespace twofour
