#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/lint/bytes/input.h"
#include "lib/lint/bytes/number_kind.h"

/// Results of one pass over the weight bytes, about 300 bytes a matrix, by which matrices are compared
/// without reading them again.
///
/// Hashes cover every byte. Statistics cover some rows, spread over the matrix: at least 8 rows and 2^14
/// numbers, or all. So the RMS of a matrix of 2^20 weights has a standard error of 6 % if rows differ by a
/// sixth, far below any threshold.
namespace twofour {

/// The kind of a tensor's numbers and, for weights in FP8 or MXFP4, their tensor of scales (of blocks, rows
/// or the tensor), in every dialect except those of NVFP4.
struct ValueFormat {
  NumberKind kind = NumberKind::kUnknown;
  std::optional<size_t> scale{};
};
ValueFormat value_format(const LintInput& input, size_t tensor);

/// The division of one tensor, or of one module of codes and block scales, into matrices and of these into
/// lines. A line is a row [K]; if K is outermost, sixteen inputs of all rows; without such rows, a piece of
/// the bytes.
struct MatrixPlan {
  NumberKind kind = NumberKind::kUnknown;
  uint64_t matrices = 1, lines = 0;          ///< lines of one matrix
  uint64_t line_bytes = 0, scale_bytes = 0;  ///< codes or values of a line; its block scales in E4M3
  bool k_outer = false;
  bool is_scale = false;  ///< scales, whose logarithms count
  bool is_rows =
      true;  ///< lines are rows as the model defines them, so that they can be compared with each other
  /// Number of lines in the sample for statistics. The lines are divided into that many equal ranges, and the
  /// line in each range is pseudorandom, so that no pattern of rows agrees with the choice.
  uint64_t sampled() const;
  /// The first sampled line from `i` on; if there is none, a number beyond all lines.
  uint64_t next_sampled(uint64_t i) const;
};

/// The figures of one matrix. Numbers are code * block scale, without the global scale, for E2M1 with block
/// scales in E4M3; the codes alone for MXFP4; the stored numbers alone for FP8.
struct MatrixFigures {
  static constexpr size_t kNone = SIZE_MAX;
  size_t tensor = 0;      ///< codes or values
  size_t module = kNone;  ///< position in LintInput::modules
  int64_t expert = -1;    ///< in a stack; -1: the tensor is one matrix
  MatrixPlan plan{};
  uint64_t ordered = 0;            ///< hash of all bytes
  uint64_t unordered = 0;          ///< the same for any order of lines
  uint64_t codes = 0, scales = 0;  ///< hashes of codes alone and of block scales alone, if any
  uint64_t zero_lines = 0, longest_zero_lines = 0, first_zero_line = 0;  ///< first_zero_line begins the
                                                                         ///< longest run
  uint64_t torn_lines = 0;  ///< lines in which a run of at least kTorn zero bytes begins or ends
  static constexpr uint64_t kTorn = 1024;
  /// Lines, other than zero, with the codes or values of an earlier line; of these, lines that follow it
  /// directly.
  uint64_t repeated_lines = 0, doubled_lines = 0;
  uint64_t echo_lines = 0;  ///< sampled lines in which one half, or every second number, repeats the other
  uint64_t columns = 0, zero_columns = 0, trailing_zero_columns = 0;  ///< in the sampled lines
  uint64_t sampled = 0;                                               ///< number of values behind the
                                                                      ///< following figures
  double log2_rms = 0, log2_amax = 0;                                 ///< -infinity if all numbers are zero
  double log2_mean = 0;  ///< of scales: mean of logarithms without zeros, which a few odd ones do not move
  double zero_share = 0;
  double negative_share = 0;  ///< of the numbers other than zero
  double small_share = 0;     ///< of floats and FP8: share below a sixteenth of the RMS, without zeros
  double constant_share = 0;  ///< share of the most frequent code, byte or float32 exponent
  std::array<float, 16> code_shares{};  ///< of E2M1
  double full_blocks = 0;  ///< of E2M1 with block scales: share of blocks with a code of 6, without zero
                           ///< blocks
  double scale_mean = 0, scale_sd = 0;  ///< log2 of block scales without zeros; for E8M0, of the numbers
  int scale_values = 0;                 ///< different block scales
  /// Lines with the block scales of the line before; sampled lines with only one scale.
  uint64_t same_scale_lines = 0, flat_scale_lines = 0;
  double octaves = 0;  ///< of FP8: octaves by which the density falls over eight codes; 0: unknown
  double unevenness =
      1;  ///< of FP8 and INT8: distance of the bytes' shares from equal shares; 0: all bytes equally frequent
  int integers = 0;       ///< of INT8: number of different integers
  double full_share = 0;  ///< of FP8: share of 448, the largest number
  /// Share of the block scales' variance that rows and columns explain beyond chance, in the stored order and
  /// in another order, both for the same bytes. 0 if unknown.
  struct Order {
    double as_stored = 0, otherwise = 0;
    double error = 0;  ///< standard deviation of either, by chance
  };
  Order swizzled{}, transposed{};
};

/// The plan of a module, and of a tensor without a module. `unit`: the tensor has no rows of numbers and is
/// read in multiples of so many bytes; 0: it has rows.
MatrixPlan plan_module_figures(const Nvfp4Linear& module);
MatrixPlan plan_tensor_figures(const LintInput& input, size_t tensor, NumberKind kind, uint64_t unit);

/// Counts a part of one matrix, line by line in order.
class FigureCounter {
 public:
  FigureCounter(const MatrixPlan& plan, uint64_t first_line);
  /// Whole lines, each `line_bytes` of codes or values (only the last of a matrix without rows may be
  /// shorter); `scales` [lines, scale_bytes].
  void add(std::span<const uint8_t> bytes, std::span<const uint8_t> scales);
  /// Adds a magnitude that a check of the whole matrix found.
  void note_amax(double amax);
  /// Adds another part of the same matrix. Runs of zero lines in the two parts count separately.
  void merge(const FigureCounter& other);
  bool is_complete() const { return lines_ == plan_.lines; }
  /// The figures, once it is complete.
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
  uint64_t next_ = 0, lines_ = 0, sample_ = 0;  ///< next line, lines so far, next sampled line
  MatrixFigures sums_;                          ///< hashes and counts
  uint64_t zero_run_ = 0, last_codes_ = 0, last_scales_ = 0;
  std::vector<uint32_t>
      seen_;  ///< an open-addressed table of halves of the lines' hashes, at most a quarter full
  uint64_t seen_count_ = 0;
  std::vector<uint8_t> columns_;                ///< all sampled lines, ORed
  std::array<uint64_t, 256> numbers_{};         ///< by byte, or by exponent of float32
  std::array<uint64_t, 256> scale_bytes_{};     ///< by block scale
  std::array<uint64_t, 256> scale_energies_{};  ///< likewise, sums of squared codes in halves
  uint64_t blocks_ = 0, full_blocks_ = 0, zero_blocks_ = 0, negative_ = 0;
  double energy_ = 0, amax_ = 0, octaves_ = 0;
  std::vector<float> floats_;
};

}  // namespace twofour
