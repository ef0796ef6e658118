#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/lint/bytes/input.h"
#include "lib/lint/bytes/number_kind.h"

/// What one pass over the weight bytes leaves of each matrix, so that matrices can be held against each other
/// without reading them again: about 300 bytes a matrix.
///
/// Hashes cover every byte. Statistics are those of some rows, spread over the matrix: at least 8 rows and
/// 2^14 numbers, or all there are. So a matrix of 2^20 weights has a standard error of its RMS of 6 % where
/// rows differ by a sixth, far below any threshold.
namespace twofour {

/// The tensor of block scales, or of one scale a tensor or row, that belongs to weights in FP8 or MXFP4; of
/// any dialect but those of NVFP4.
struct ValueFormat {
  NumberKind kind = NumberKind::kUnknown;
  std::optional<size_t> scale{};
};
ValueFormat value_format(const LintInput& input, size_t tensor);

/// How one tensor, or one module of codes and block scales, is cut into matrices and these into lines. A line
/// is a row [K], of a module with K outermost sixteen inputs of all rows; of a matrix without such rows, a
/// piece of its bytes.
struct MatrixPlan {
  NumberKind kind = NumberKind::kUnknown;
  uint64_t matrices = 1, lines = 0;          ///< lines of one matrix
  uint64_t line_bytes = 0, scale_bytes = 0;  ///< codes or values of a line; its block scales in E4M3
  bool k_outer = false;
  bool is_scale = false;  ///< numbers that others are multiplied by, whose logarithms count
  bool is_rows =
      true;  ///< lines are what the model knows as such, so that they may be held against each other
  /// How many lines statistics take. The line in each of so many equal ranges lies anywhere, so that no
  /// pattern of the rows agrees with the choice.
  uint64_t sampled() const;
  /// The first line from `i` on that statistics take; one beyond all lines: none.
  uint64_t next_sampled(uint64_t i) const;
};

/// The figures of one matrix. Of E2M1 with block scales in E4M3, numbers are code * block scale, without the
/// global scale; of MXFP4 the codes alone, of FP8 the stored numbers alone.
struct MatrixFigures {
  static constexpr size_t kNone = SIZE_MAX;
  size_t tensor = 0;      ///< codes or values
  size_t module = kNone;  ///< in LintInput::modules
  int64_t expert = -1;    ///< in a stack; -1: the tensor is one matrix
  MatrixPlan plan{};
  uint64_t ordered = 0;            ///< hash of all bytes
  uint64_t unordered = 0;          ///< the same for any order of lines
  uint64_t codes = 0, scales = 0;  ///< hashes of codes and of their block scales alone, where there are any
  uint64_t zero_lines = 0, longest_zero_lines = 0, first_zero_line = 0;  ///< the first of the longest run
  uint64_t torn_lines = 0;  ///< zero bytes begin or end within them and go on for at least kTorn bytes
  static constexpr uint64_t kTorn = 1024;
  /// With the codes or values of an earlier one, and not zero; those of them that have it just before them.
  uint64_t repeated_lines = 0, doubled_lines = 0;
  uint64_t echo_lines = 0;  ///< of those that statistics take: one half, or each second number, is the other
  uint64_t columns = 0, zero_columns = 0, trailing_zero_columns = 0;  ///< in the lines that statistics take
  uint64_t sampled = 0;                                               ///< numbers behind the following
  double log2_rms = 0, log2_amax = 0;                                 ///< of zeros alone -infinity
  double log2_mean = 0;  ///< of scales: the mean of logarithms, zeros aside, which a few odd ones do not move
  double zero_share = 0;
  double negative_share = 0;  ///< of what is not zero
  double small_share = 0;     ///< of floats and FP8: smaller than a sixteenth of the RMS, zeros aside
  double constant_share = 0;  ///< of the most frequent code, byte or float32 exponent
  std::array<float, 16> code_shares{};  ///< of E2M1
  double full_blocks = 0;  ///< of E2M1 with block scales: share of blocks, zeros aside, with a code of 6
  double scale_mean = 0, scale_sd = 0;  ///< log2 of block scales, zeros aside; of E8M0 of the numbers
  int scale_values = 0;                 ///< different block scales
  /// Lines with the block scales of the line before; of those that statistics take, lines of one scale.
  uint64_t same_scale_lines = 0, flat_scale_lines = 0;
  double octaves = 0;  ///< of FP8: by how many octaves the density falls over eight codes; 0: unknown
  double unevenness =
      1;  ///< of FP8 and INT8: how far shares of bytes are from equal ones; 0: every byte equally often
  int integers = 0;       ///< of INT8: different ones
  double full_share = 0;  ///< of FP8: of 448, the largest number
  /// How much of the block scales' variance rows and columns explain, beyond chance: as they lie, and if they
  /// lay in another order; both of the same bytes. 0 where it cannot be told.
  struct Order {
    double as_stored = 0, otherwise = 0;
    double error = 0;  ///< standard deviation of either, by chance
  };
  Order swizzled{}, transposed{};
};

/// Of a module; of a tensor that belongs to none. `unit`: it is read in multiples of so many bytes and is no
/// rows of numbers; 0: it is.
MatrixPlan plan_module_figures(const Nvfp4Linear& module);
MatrixPlan plan_tensor_figures(const LintInput& input, size_t tensor, NumberKind kind, uint64_t unit);

/// Counts a part of one matrix, line by line in order.
class FigureCounter {
 public:
  FigureCounter(const MatrixPlan& plan, uint64_t first_line);
  /// Whole lines, each `line_bytes` of codes or values (only the last of a matrix without rows may be
  /// shorter); `scales` [lines, scale_bytes].
  void add(std::span<const uint8_t> bytes, std::span<const uint8_t> scales);
  /// A magnitude that the matrix has, from whoever looked at all of it.
  void note_amax(double amax);
  /// Adds another part of the same matrix; zero lines of both count as runs of their own.
  void merge(const FigureCounter& other);
  bool is_complete() const { return lines_ == plan_.lines; }
  /// Once it is complete.
  MatrixFigures figures() const;

 private:
  void take_line(std::span<const uint8_t> bytes, const uint8_t* scales);
  void take_blocks(const uint8_t* codes, const uint8_t* scales);
  void take_columns(const uint8_t* bytes);
  void take_numbers(std::span<const uint8_t> bytes);
  void measure_order(std::span<const uint8_t> scales);
  bool is_new(uint64_t hash);
  bool is_echo(std::span<const uint8_t> bytes) const;
  bool is_torn(std::span<const uint8_t> bytes, uint64_t begin, uint64_t size) const;
  uint64_t hash_in_order() const;

  MatrixPlan plan_;
  uint64_t next_ = 0, lines_ = 0, sample_ = 0;  ///< next line, lines so far, next line that statistics take
  MatrixFigures sums_;                          ///< hashes and counts
  uint64_t zero_run_ = 0, last_codes_ = 0, last_scales_ = 0;
  std::vector<uint32_t>
      seen_;  ///< an open-addressed table of halves of hashes of lines, a quarter full at most
  uint64_t seen_count_ = 0;
  std::vector<uint8_t> columns_;                ///< every taken line, ORed
  std::array<uint64_t, 256> numbers_{};         ///< by byte, or by exponent of float32
  std::array<uint64_t, 256> scale_bytes_{};     ///< by block scale
  std::array<uint64_t, 256> scale_energies_{};  ///< likewise, sums of squared codes in halves
  uint64_t blocks_ = 0, full_blocks_ = 0, zero_blocks_ = 0, negative_ = 0;
  double energy_ = 0, amax_ = 0, octaves_ = 0;
  std::vector<float> floats_;
};

}  // namespace twofour
