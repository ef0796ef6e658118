#pragma once
#include <cstdint>

// Included by files that are compiled for one instruction set: nothing here may emit a function, or the
// linker might keep the copy that only the newest processors can run. So no standard headers but <cstdint>.

namespace twofour {

enum class Isa;

constexpr int kSolveRows = 32;   // of a tile
constexpr int kSolveBlock = 16;  // columns that share a block scale
constexpr int kScaleCodes = 127;

/// Data that tiles of one matrix share.
struct SolvePlan {
  int64_t k;
  int group;              ///< columns of a mask: 4 or 8
  bool is_dense;          ///< one mask, which keeps all columns
  const float* matrix;    ///< Hd [k, k]
  const float* factor;    ///< U [k, k]
  const float* diagonal;  ///< [k], weights of squares for SolveMethod::diagonal
  const float* maps;      ///< see group_maps.h
  const float* step;      ///< [127] by block scale, the value of code 1.0; 0 for scale 0
  const float* inverse;   ///< [127] 1 / step
  float to_code;          ///< a step times this, rounded to E4M3, is its block scale
  int (*nearest)(float);  ///< the block scale 1 .. 126 nearest to a number, 1 below the smallest
  float min_gain;
};

/// 32 rows, stored column by column. Missing rows are zeros.
struct SolveTile {
  float* values;    ///< [k, 32]: weights before a method, the values of the codes after it
  float* gradient;  ///< [k, 32]: (W - Q) Hd
  float* errors;    ///< [16, 32]
  int32_t* scales;  ///< [k / 16, 32], block scales
  int32_t* masks;   ///< [k / group, 32], numbers of masks; read if is_given
  bool is_given;    ///< masks are given and stay
  float* gains;     ///< [32], the loss that a sweep removed
  int32_t* moves;   ///< [32], -1: descent continues with this row, 0: it has stopped
};

/// c [rows, columns] -= sum over t in [0, count) of a(t, row) b(t, column), t in order. The strides are in
/// numbers, from one t to the next and from row to row; columns are neighbours.
struct DoubleProducts {
  const double* a;
  int64_t a_next, a_row;
  const double* b;
  int64_t b_next;
  double* c;
  int64_t c_row;
  int64_t count, rows, columns;
};

/// The functions of an instruction set. All give the same bits.
struct SolveOps {
  /// OBS in the order of columns; mask, scale and codes are chosen together.
  void (*joint)(const SolvePlan&, const SolveTile&);
  /// Masks by w^2 times the diagonal, if `masked`, then scales and codes by squares, weighted with the
  /// diagonal if `weighted`.
  void (*round)(const SolvePlan&, const SolveTile&, bool masked, bool weighted);
  /// gradient -= change [k, 32] Hd, with the change of `values` from block to block, in order. A block's
  /// change is in `errors`.
  void (*sweep)(const SolvePlan&, const SolveTile&);
  /// For a block of columns from `first` on: to [k, 32] for columns `from` and later, to -= errors [16, 32]
  /// times 16 rows of a matrix.
  void (*subtract)(const float* matrix, int64_t k, int64_t first, int64_t from, const float* errors,
                   float* to);
  void (*subtract_products)(const DoubleProducts&);
};

extern const SolveOps kSolvePortable;
extern const SolveOps kSolveAvx2;
extern const SolveOps kSolveAvx512;

const SolveOps& solve_ops(Isa isa);

}  // namespace twofour
