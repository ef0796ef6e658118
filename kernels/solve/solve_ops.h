#pragma once
#include <cstdint>

// Files that are compiled for one instruction set include this file. Nothing here may emit a function: the
// linker might keep the copy that only the newest processors can run. So <cstdint> is the only standard
// header.

namespace twofour {

enum class Isa;

constexpr int kSolveRows = 32;   // rows of a tile
constexpr int kSolveBlock = 16;  // columns whose errors are passed on together
constexpr int kMostBlock = 32;   // columns that share a block scale, at most
constexpr int kScaleCodes = 254;

/// Data that the tiles of one matrix share.
struct SolvePlan {
  int64_t k;
  int group;              ///< number of columns of a mask: 4 or 8
  bool is_dense;          ///< true if there is only one mask, which keeps all columns
  const float* matrix;    ///< Hd [k, k]
  const float* factor;    ///< U [k, k]
  const float* diagonal;  ///< [k], weights of squares for SolveMethod::diagonal
  const float* maps;      ///< see group_maps.h
  const float* step;      ///< [254] the value of code 1.0 by block scale; 0 for scale 0
  const float* inverse;   ///< [254] 1 / step
  float to_code;          ///< factor from a step to its block scale, before rounding to E4M3
  int (*nearest)(float);  ///< the block scale 1 .. 126 nearest to a number, 1 below the smallest
  float min_gain;
  int scale_search;  ///< number of codes above the largest weight's up to which scales are tried
  int scale_below;   ///< number of codes below it
  int block;         ///< number of columns that share a scale: 16 or 32
  int last_scale;    ///< largest block scale
  bool has_powers;   ///< block scales are powers of two, by E8M0
  bool is_fixed;     ///< scales are given, and stay
  // The grid of codes, see formats/weight_format.h.
  float largest;
  int mantissa;    ///< number of bits
  int top;         ///< exponent of the largest power of two
  int32_t lowest;  ///< exponent bits of the smallest normal number, as a float's
  int32_t magic;   ///< adds to the exponent bits of a number to give 1.5 times the power of two whose last
                   ///< bit is the code's
};

/// 32 rows of weights, stored column by column. Missing rows are zeros.
struct SolveTile {
  float* values;       ///< [k, 32] weights before solving, values of the codes afterwards
  float* gradient;     ///< [k, 32] (W - Q) Hd
  float* errors;       ///< [block, 32]
  int32_t* scales;     ///< [k / block, 32], block scales
  const float* steps;  ///< [k / 16, 32] the value of code 1.0, for fixed scales
  int32_t* masks;      ///< [k / group, 32], numbers of masks; read if is_given
  bool is_given;       ///< true if masks are given and must not change
  float* gains;        ///< [32] loss that a sweep removed from each row
  int32_t* moves;      ///< [32] -1 if descent continues with this row, 0 if it has stopped
};

/// Computes c [rows, columns] -= sum over t in [0, count) of a(t, row) b(t, column), with t in order. Strides
/// are in numbers: from one t to the next, and from one row to the next. Columns are adjacent.
struct DoubleProducts {
  const double* a;
  int64_t a_next, a_row;
  const double* b;
  int64_t b_next;
  double* c;
  int64_t c_row;
  int64_t count, rows, columns;
};

/// The functions for one instruction set. All instruction sets give the same bits.
struct SolveOps {
  /// OBS in the order of columns. Masks, scales and codes are chosen together.
  void (*joint)(const SolvePlan&, const SolveTile&);
  /// Chooses masks by w^2 times the diagonal if `masked` is true, then scales and codes by squared errors.
  /// The squared errors are weighted with the diagonal if `weighted` is true.
  void (*round)(const SolvePlan&, const SolveTile&, bool masked, bool weighted);
  /// Runs descent over the blocks in order. Subtracts from the gradient [k, 32] the product of Hd and the
  /// change of `values`, block by block. The change of the current block is in `errors`.
  void (*sweep)(const SolvePlan&, const SolveTile&);
  /// Updates columns after a block. For columns `from` and later of `to` [k, 32], subtracts errors [16, 32]
  /// times the 16 rows of a matrix that begin at row `first`.
  void (*subtract)(const float* matrix, int64_t k, int64_t first, int64_t from, const float* errors,
                   float* to);
  void (*subtract_products)(const DoubleProducts&);
};

extern const SolveOps kSolvePortable;
extern const SolveOps kSolveAvx2;
extern const SolveOps kSolveAvx512;

const SolveOps& solve_ops(Isa isa);

}  // namespace twofour
