#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "lib/lint/bytes/input.h"
#include "lib/lint/chunks/chunk.h"
#include "lib/lint/chunks/foreign_bytes.h"
#include "lib/lint/chunks/levels.h"
#include "lib/lint/chunks/number_counts.h"
#include "lib/lint/chunks/number_kind.h"
#include "lib/lint/chunks/repeated_pieces.h"
#include "lib/lint/chunks/zero_places.h"

/// Figures of matrices from one pass over their bytes, less than 1 KiB for each matrix. Matrices are compared
/// by their figures, without reading them again.
///
/// Hashes, counts, magnitudes of rows and columns cover every byte. One figure covers a sample of rows, at
/// least 8 rows and 2^14 numbers: the RMS of codes with block scales. For a matrix of 2^20 weights whose rows
/// differ by a sixth, it has a standard error of 6 %. This is far below every threshold.
namespace twofour {

/// The kind of a tensor's numbers. For weights in FP8 or MXFP4, also the tensor with their scales, which are
/// for blocks, rows or the whole tensor. It covers every dialect except those of NVFP4.
struct ValueFormat {
  NumberKind kind = NumberKind::kUnknown;
  std::optional<size_t> scale{};
};
ValueFormat value_format(const LintInput& input, size_t tensor);

/// The division of a tensor, or of a module of codes and block scales, into matrices and lines. A
/// line is a row [K]. If K is the outer dimension, a line is sixteen inputs of all rows. If a tensor has no
/// such rows, a line is a piece of its bytes.
struct MatrixPlan {
  NumberKind kind = NumberKind::kUnknown;
  uint64_t matrices = 1, lines = 0;  ///< number of matrices, and number of lines in one matrix
  /// Bytes of codes or values in a line, and of its block scales in E4M3.
  uint64_t line_bytes = 0, scale_bytes = 0;
  bool k_outer = false;   ///< K is the outer dimension
  bool is_scale = false;  ///< the tensor has scales, whose logarithms are counted
  /// For a tensor of scales, the number of scales in a row; 0: they are not compared by rows and columns.
  uint64_t scale_columns = 0;
  bool is_rows =
      true;  ///< lines are rows as the model defines them, so that they can be compared with each other
  /// The number of lines in the sample for the RMS of codes. The lines are divided into that many equal
  /// ranges. One pseudorandom line of each range is in the sample, so that the choice follows no pattern of
  /// the rows.
  uint64_t sampled() const;
  /// The first line of the sample from line `i` on. If there is none, the result is beyond all lines.
  uint64_t next_sampled(uint64_t i) const;
  bool operator==(const MatrixPlan&) const = default;
};

/// The figures of one matrix. A number is code * block scale, without the global scale, for E2M1 with block
/// scales in E4M3. It is the code alone for MXFP4, and the stored number alone for FP8.
struct MatrixFigures {
  static constexpr size_t kNone = SIZE_MAX;
  size_t tensor = 0;      ///< position of the tensor of codes or values
  size_t module = kNone;  ///< position in LintInput::modules
  int64_t expert = -1;    ///< number of the expert in a stack; -1: the tensor is one matrix
  MatrixPlan plan{};
  uint64_t ordered = 0;    ///< hash of all bytes
  uint64_t unordered = 0;  ///< hash of all bytes that is the same for every order of the lines
  /// Hashes of the codes alone and of the block scales alone.
  uint64_t codes = 0, scales = 0;
  /// Number of lines of zeros, length of the longest run of them, and the line at which this run begins.
  uint64_t zero_lines = 0, longest_zero_lines = 0, first_zero_line = 0;
  ZeroPlaces zero_rows{}, zero_places{};  ///< the lines of zeros, and the columns of zeros
  uint32_t live_zero_lines = 0;           ///< lines of zeros whose block scales are not those of zeros
  uint64_t torn_lines = 0;  ///< lines in which a run of at least kTorn zero bytes begins or ends
  static constexpr uint64_t kTorn = 1024;
  /// Lines with such a run that is also in the line before or after, as of a block of zeros: number, the
  /// first one, and the position after the last one.
  uint32_t block_lines = 0, first_block_line = UINT32_MAX, end_block_line = 0;
  /// Number of lines, not counting zero lines, that have the codes or values of an earlier line, and
  /// the number of those that directly follow that line.
  uint64_t repeated_lines = 0, doubled_lines = 0;
  uint64_t echo_lines = 0;  ///< lines in which one half, or every second number, repeats the other
  /// Columns: all, those of zeros, those of zeros at the end, the longest run of those of zeros.
  uint64_t columns = 0, zero_columns = 0, trailing_zero_columns = 0, longest_zero_columns = 0;
  uint64_t counted = 0;                ///< number of values in the following figures
  double log2_rms = 0, log2_amax = 0;  ///< -infinity if all numbers are zero
  /// For scales, the mean of the logarithms without zeros. A few odd scales hardly change it.
  double log2_mean = 0;
  double zero_share = 0;
  double negative_share = 0;  ///< share of negative numbers among those that are not zero
  /// For floats and FP8, the share of numbers below a sixteenth of the RMS, not counting zeros.
  double small_share = 0;
  double constant_share = 0;            ///< share of the most frequent code, byte or float32 exponent
  std::array<float, 16> code_shares{};  ///< share of each code of E2M1
  /// For E2M1 with block scales, the share of blocks that have a code of 6, not counting zero blocks.
  double full_blocks = 0;
  /// Mean and standard deviation of log2 of the block scales, without zeros. For a tensor of E8M0 scales, of
  /// its own numbers.
  double scale_mean = 0, scale_sd = 0;
  int scale_values = 0;  ///< number of different block scales
  /// Number of lines that have the block scales of the line before; number of lines with only one scale.
  uint64_t same_scale_lines = 0, flat_scale_lines = 0;
  /// Block scales of the sampled lines: number of pairs, scales 2i and 2i + 1; of these, equal ones; number
  /// of equal scales 2i + 1 and 2i + 2.
  uint64_t scale_pairs = 0, equal_pairs = 0, equal_between = 0;
  double repeated_scales = 0;  ///< share of pieces of block scales that are equal to an earlier piece
  float octaves = 0;  ///< for FP8: number of octaves by which the density falls over eight codes; 0: unknown
  float unevenness = 1;  ///< for FP8 and INT8: distance of the bytes' shares from equal shares; 0: all bytes
                         ///< equally frequent
  int integers = 0;      ///< for INT8: number of different integers
  /// For FP8, the share of 448, the largest number, and of 416, the next one.
  float full_share = 0, next_share = 0;
  bool is_grid = false;  ///< for floats: each is 0, 0.5, 1, 1.5 or a whole number of at most 15
  OddRegion region{};    ///< chunks that do not belong to the matrix
  /// Magnitudes of rows and columns: of floats, the RMS; of codes with block scales, the mean of the scales'
  /// logarithms; of a tensor of scales, its own numbers.
  Levels row_levels{}, column_levels{};
  /// Sketches of the levels of columns and, if there are as many rows as columns, of rows.
  Sketch row_sketch{}, column_sketch{};
  /// For E2M1, the sketch of the difference between the two columns of each byte, in the first lines.
  Sketch pair_sketch{};
  /// Bytes of neighbouring columns of E2M1 and FP8 without a sign in some lines: number, the first one, and
  /// the first of the lines.
  uint32_t unsigned_columns = 0, first_unsigned = 0, unsigned_line = 0;
  uint8_t bits = 0xFF;  ///< for FP8: the bits that are set in any number
  /// The largest float, if its square is more than half of the sum of its line: how many octaves it is above
  /// the middle line's RMS, and its line.
  double lone = 0;
  uint64_t lone_line = 0;
  ForeignBytes foreign{}, foreign_scales{};  ///< text or one pattern in the bytes, and in the block scales
  ForeignBytes zero_bytes{};                 ///< the longest run of zero bytes
  Pieces::Repeat repeat{}, scale_repeat{};   ///< bytes, and block scales, that repeat an earlier place
  /// The longest run of blocks of zeros whose scales are not those of zeros: number of blocks, and the first.
  uint64_t dead_run = 0, dead_first = 0;
  /// The share of the block scales' variance that rows and columns explain beyond chance. `as_stored` is for
  /// the stored order, `otherwise` for another order of the same bytes. 0: unknown.
  struct Order {
    float as_stored = 0, otherwise = 0;
    float error = 0;  ///< standard deviation of both shares if they are due to chance
  };
  Order swizzled{}, transposed{};
};

static_assert(sizeof(MatrixFigures) <= 1024);

/// Return the plan of a module, and of a tensor that is in no module. `unit` is 0 if the tensor has rows of
/// numbers. Otherwise it is read in multiples of `unit` bytes.
MatrixPlan plan_module_figures(const Nvfp4Linear& module);
MatrixPlan plan_tensor_figures(const LintInput& input, size_t tensor, NumberKind kind, uint64_t unit);

/// Counts a part of one matrix. It takes the lines in order.
class FigureCounter {
 public:
  /// The counter is for `lines` lines from `first_line` on.
  FigureCounter(const MatrixPlan& plan, uint64_t first_line, uint64_t lines);
  /// Adds whole lines, each with `line_bytes` of codes or values. Only the last line of a matrix without rows
  /// may be shorter. `scales` is [lines, scale_bytes].
  void add(std::span<const uint8_t> bytes, std::span<const uint8_t> scales);
  /// Returns the range of the numbers that were added last; nullptr: they are not BF16.
  const HalfRange* half_range() const { return float_lines_.empty() ? nullptr : &half_range_; }
  /// Ends the last chunk. Nothing may be added afterwards.
  void finish();
  /// Adds a magnitude from a check that covers the whole matrix.
  void note_amax(double amax);
  /// Adds the counts of another part of the same matrix. A run of zero lines that crosses both parts counts
  /// as two.
  void merge(const FigureCounter& other);
  bool is_complete() const { return lines_ == plan_.lines; }
  /// Returns the figures of the matrix. All its lines must have been added.
  MatrixFigures figures() const;

 private:
  void hash_lines(std::span<const uint8_t> bytes);
  void take_piece(std::span<const uint8_t> bytes, std::span<const uint8_t> scales);
  void take_line(std::span<const uint8_t> bytes, const uint8_t* scales, const FloatCounts* floats);
  void end_chunk();
  void add_column_parts();
  void count_k_outer(std::span<const uint8_t> bytes, CodeCounts& counts) const;
  void count_windows(std::span<const uint8_t> bytes, CodeCounts& counts);
  void take_run(std::span<const uint8_t> bytes, const uint8_t* scales);
  void take_energies(const uint8_t* codes, const uint8_t* scales);
  void take_scales(std::span<const uint8_t> scales);
  void take_exponents(std::span<const uint8_t> bytes);
  std::span<const ByteSums> add_bytes(const uint8_t* bytes, uint64_t count, uint64_t lines, uint8_t least,
                                      uint64_t columns, uint64_t column);
  template <class T, class Add>
  void take_levels(const T* scales, uint64_t count, uint64_t first, const Add& add);
  void end_logs();
  void take_columns(const uint8_t* bytes);
  void take_halves(std::span<const uint8_t> bytes);
  void take_pairs(const uint8_t* bytes);
  void take_signs(const uint8_t* bytes);
  void judge_pairs(MatrixFigures& figures) const;
  void take_floats(std::span<const uint8_t> bytes, const FloatCounts* counts, bool is_sampled);
  void take_dead_blocks(std::span<const uint8_t> codes, const uint8_t* scales);
  void measure_order(std::span<const uint8_t> scales);
  bool is_new(uint64_t hash);
  bool is_echo(std::span<const uint8_t> bytes) const;
  void take_torn(std::span<const uint8_t> bytes, uint64_t begin, uint64_t size);
  uint64_t hash_in_order() const;
  bool has_float_rows() const;
  bool is_codes() const;
  /// Sums over all numbers.
  struct Totals {
    double numbers, zeros, energy, amax;
    double most = 0;  ///< count of the most frequent code, byte or exponent
  };
  void sum_codes(Totals& all, MatrixFigures& figures) const;
  void sum_sixes(Totals& all, MatrixFigures& figures) const;
  void sum_bytes(Totals& all, MatrixFigures& figures) const;
  void measure_small(double in_sample, MatrixFigures& figures) const;
  void measure_block_scales(MatrixFigures& figures) const;
  void count_columns(MatrixFigures& figures) const;
  void judge_levels(MatrixFigures& figures) const;
  void judge_dead_blocks(MatrixFigures& figures) const;

  /// Bytes of E4M3 an octave. Block scales below kTinyScale, 0.14, are those that producers give to blocks of
  /// zeros.
  static constexpr float kCodesInOctave = 8;
  static constexpr float kE8m0Bias = 127;
  static constexpr int kMostLines = 256;  ///< sums of so many bytes fit into 16 bits
  static constexpr uint8_t kTinyScale = 0x21;

  MatrixPlan plan_;
  /// First line, next line, number of lines so far, next line of the sample.
  uint64_t first_ = 0, next_ = 0, lines_ = 0, sample_ = 0;
  MatrixFigures sums_;  ///< hashes and counts so far
  uint64_t zero_run_ = 0, last_codes_ = 0, last_scales_ = 0;
  std::vector<uint32_t>
      seen_;  ///< an open-addressed table of halves of the lines' hashes, at most a quarter full
  uint64_t seen_count_ = 0;
  std::optional<Pieces> pieces_, scale_pieces_;
  Looks looks_{}, scale_looks_{true};
  std::vector<uint8_t> columns_;  ///< all lines of codes, combined by a bitwise or
  bool columns_used_ = false;     ///< every column is known to have a code that is not zero
  /// Sums of the magnitudes of lower and of upper codes by byte, in the first kPairLines lines of E2M1; all
  /// bytes of kSignLines lines of each kSignStep, combined by a bitwise or.
  std::vector<uint16_t> lower_codes_, upper_codes_;
  std::vector<uint8_t> signs_;
  static constexpr uint64_t kPairLines = 64, kSignLines = 32, kSignStep = 128;
  ByteCounts bytes_;  ///< bytes of the current chunk
  Chunk chunk_{};
  std::vector<Chunk> chunks_;
  /// Number of numbers for each byte or code or, of the sampled lines of floats, for each exponent. For FP8,
  /// lines are sampled, too.
  std::array<uint64_t, 256> numbers_{};
  std::array<uint64_t, 256> scale_bytes_{};  ///< number of block scales for each byte
  /// For each byte of a block scale in the sampled lines, the sum of the squared codes of its blocks, with
  /// codes in halves.
  std::array<uint64_t, 256> scale_energies_{};
  uint64_t energy_numbers_ = 0;  ///< number of codes in scale_energies_
  uint64_t blocks_ = 0, full_blocks_ = 0, zero_blocks_ = 0;
  uint64_t full_ = 0, next_full_ = 0;  ///< for FP8: number of numbers of 448 and of 416
  uint64_t counted_ = 0, zeros_ = 0, negative_ = 0;
  double energy_ = 0, amax_ = 0, octaves_ = 0;
  /// log2 of the magnitude of each line from `first_` on. For a tensor of scales, sums of logarithms of all
  /// rows, with their numbers.
  std::vector<float> row_sums_;
  std::vector<uint32_t> row_counts_;
  std::vector<float> column_sums_;       ///< for floats: sums of squares; for scales: sums of logarithms
  std::vector<uint32_t> column_counts_;  ///< for scales: number of scales in a column
  /// For block scales and E8M0, the sums and numbers of up to kMostLines lines, and the number of these
  /// lines.
  std::vector<uint16_t> column_parts_;
  int column_lines_ = 0;
  bool is_grid_ = true;
  double lone_ = 0;
  uint64_t lone_line_ = 0;
  /// The current run of blocks of zeros under scales of other blocks, and the sum of its scales' bytes; the
  /// longest run, and the number of all such blocks.
  uint64_t run_ = 0, run_first_ = 0, run_scales_ = 0, best_run_scales_ = 0, dead_blocks_ = 0;
  std::vector<float> floats_, spare_;
  /// For the lines that are being added: hashes of lines of a chunk; counts of BF16; sums of scales.
  std::vector<uint64_t> hashes_;
  std::vector<FloatCounts> float_lines_;
  HalfRange half_range_{};
  std::vector<ByteSums> byte_lines_;
  LogSums logs_{};  ///< sums for scales in floats
  int factors_ = 0;
};

}  // namespace twofour
