#pragma once
#include <bit>
#include <cstdint>

#include "formats/e4m3.h"
#include "formats/hd.h"

namespace twofour {

/// The numbers of a small float format without infinities. A code has a sign bit, then an exponent, then a
/// mantissa. Magnitudes sort as codes do. Source: OCP Microscaling Formats (MX) v1.0, 5.3.
struct CodeGrid {
  int bits;       ///< bits of a code
  int mantissa;   ///< number of mantissa bits
  int lowest;     ///< exponent of the smallest normal number
  float largest;  ///< largest magnitude

  /// The exponent of the largest power of two.
  TWOFOUR_HD constexpr int top() const {
    return static_cast<int>(std::bit_cast<uint32_t>(largest) >> 23) - 127;
  }
  TWOFOUR_HD constexpr unsigned sign() const { return 1u << (bits - 1); }
  bool operator==(const CodeGrid&) const = default;
};

inline constexpr CodeGrid kE2m1Grid{4, 1, 0, 6.0f};
inline constexpr CodeGrid kE2m3Grid{6, 3, 0, 7.5f};
inline constexpr CodeGrid kE4m3Grid{8, 3, -6, 448.0f};

/// Returns the nearest code, ties to the even code, saturating at the largest. The sign is kept even if the
/// number rounds to zero. NaN gives the largest code.
TWOFOUR_HD constexpr unsigned code_from_float(const CodeGrid& grid, float x) {
  const uint32_t bits = std::bit_cast<uint32_t>(x);
  float size = std::bit_cast<float>(bits & 0x7FFFFFFFu);
  size = size < grid.largest ? size : grid.largest;
  int exponent = static_cast<int>(std::bit_cast<uint32_t>(size) >> 23) - 127;
  if (exponent < grid.lowest) exponent = grid.lowest;
  // In units of the last mantissa bit the number is below 2^23, and the sum rounds it.
  const float unit = std::bit_cast<float>(static_cast<uint32_t>(grid.mantissa - exponent + 127) << 23);
  const uint32_t count = std::bit_cast<uint32_t>(size * unit + 0x1p23f) & 0x7FFFFFu;
  const uint32_t code = (static_cast<uint32_t>(exponent - grid.lowest) << grid.mantissa) + count;
  return (bits >> 31 ? grid.sign() : 0u) | code;
}

/// E2M3 has 6 bits and an exponent bias of 1. Bit 5 is the sign. There are no NaNs and no infinities. The
/// largest magnitude is 7.5, the smallest normal one 1, and the smallest subnormal one 0.125.
TWOFOUR_HD constexpr float e2m3_to_float(unsigned code) {
  const unsigned exponent = code >> 3 & 3u, mantissa = code & 7u;
  const float magnitude = exponent == 0 ? static_cast<float>(mantissa) / 8
                                        : static_cast<float>((8 + mantissa) << (exponent - 1)) / 8;
  return code & 0x20u ? -magnitude : magnitude;
}

/// A number format of weights. The constants below are the formats, and each member is a property of a
/// format. lib/source/linears/linear_reader.cpp decodes the bytes.
struct WeightFormatRow {
  const char* name;           ///< for messages
  const char* key;            ///< in twofour.json
  bool coded = false;         ///< true for codes with separate scales, false for plain numbers
  bool pairs = false;         ///< codes of E2M1, two in a byte
  bool sixes = false;         ///< codes of E2M3, four in three bytes
  bool integers = false;      ///< eight codes in a word; a zero point is subtracted from each
  bool global_scale = false;  ///< block scales are multiplied by a further scale of the whole matrix
  bool tiles = false;  ///< one byte for each weight, with a scale for the matrix, for each row or for each
                       ///< block of any size
  int64_t group = 0;   ///< number of weights along K that share a scale; 0 if the format does not fix it
  // The names of the format in compressed-tensors, if its groups have a fixed size.
  int bits = 0;
  const char* strategy = "";
  const char* packed_as = "";
  CodeGrid grid{};           ///< the numbers of codes, if the format is written
  const char* to = "";       ///< the word for it in rules, if it has no dialect's variants
  const char* summary = "";  ///< a description for users
  /// Decodes one byte of a format with tiles. nullptr means E4M3. Callers use value_of().
  float (*number)(uint8_t byte) = nullptr;
  /// The format of which this is a variant without a name of its own in configs. nullptr for other formats.
  const WeightFormatRow* variant_of = nullptr;

  /// False for codes in a format that twofour cannot name.
  constexpr bool is_known() const { return *key != '\0'; }
  /// True if codes share bytes and each group along K has one scale: MXFP4, MXFP6, NVFP4.
  constexpr bool in_groups() const { return pairs || sixes; }
  /// The number of one byte of a format with tiles, without its scale. It may be NaN.
  float value_of(uint8_t byte) const { return number ? number(byte) : e4m3_to_float(byte); }
  /// The number of bytes of `weights` codes. Codes of a group fill whole bytes.
  constexpr int64_t code_bytes(int64_t weights) const {
    return sixes ? weights / 4 * 3 + weights % 4 : pairs ? weights / 2 : weights;
  }
};

/// A number format, as a reference to its row.
class WeightFormat {
 public:
  static const WeightFormat kFloat, kFp8, kMxfp4, kMxfp6, kMxfp8, kNvfp4, kNvfp4Bs32, kInt4, kOther;
  constexpr WeightFormat();  ///< the format of floats
  constexpr explicit WeightFormat(const WeightFormatRow& row) : row_(&row) {}
  constexpr const WeightFormatRow* operator->() const { return row_; }
  bool operator==(const WeightFormat&) const = default;

 private:
  const WeightFormatRow* row_;
};

/// The number of weights along K that share a scale in MXFP4, MXFP6 and MXFP8. Source: OCP Microscaling
/// Formats (MX) v1.0, 5.2.
inline constexpr int64_t kMxGroup = 32;

namespace weight_formats {
inline constexpr WeightFormatRow kFloat{.name = "floats", .key = "float"};
inline constexpr WeightFormatRow kFp8{
    .name = "FP8", .key = "fp8", .coded = true, .tiles = true, .grid = kE4m3Grid};
inline constexpr WeightFormatRow kMxfp4{.name = "MXFP4",
                                        .key = "mxfp4",
                                        .coded = true,
                                        .pairs = true,
                                        .group = kMxGroup,
                                        .bits = 4,
                                        .strategy = "group",
                                        .packed_as = "mxfp4-pack-quantized",
                                        .grid = kE2m1Grid,
                                        .to = "mxfp4",
                                        .summary = "E2M1 weights with a power of two for each 32"};
inline constexpr WeightFormatRow kMxfp6{.name = "MXFP6",
                                        .key = "mxfp6",
                                        .coded = true,
                                        .sixes = true,
                                        .group = kMxGroup,
                                        .bits = 6,
                                        .strategy = "group",
                                        .packed_as = "mxfp6-pack-quantized",
                                        .grid = kE2m3Grid,
                                        .to = "mxfp6",
                                        .summary = "E2M3 weights with a power of two for each 32"};
inline constexpr WeightFormatRow kNvfp4{.name = "NVFP4",
                                        .key = "nvfp4",
                                        .coded = true,
                                        .pairs = true,
                                        .global_scale = true,
                                        .group = 16,
                                        .bits = 4,
                                        .strategy = "tensor_group",
                                        .packed_as = "nvfp4-pack-quantized",
                                        .grid = kE2m1Grid};
/// NVFP4 with block scales for 32 weights: ModelOpt's nvfp4_bs32.
inline constexpr WeightFormatRow kNvfp4Bs32{.name = "NVFP4 with scales for 32",
                                            .key = "nvfp4_bs32",
                                            .coded = true,
                                            .pairs = true,
                                            .global_scale = true,
                                            .group = 32,
                                            .variant_of = &kNvfp4};
inline constexpr WeightFormatRow kInt4{.name = "INT4", .key = "int4", .coded = true, .integers = true};
/// FP8 with scales of groups. Configs and lint distinguish it from kFp8. Readers treat it as kFp8 with tiles
/// of the group's size.
inline constexpr WeightFormatRow kMxfp8{.name = "MXFP8",
                                        .key = "fp8",
                                        .coded = true,
                                        .tiles = true,
                                        .group = kMxGroup,
                                        .bits = 8,
                                        .strategy = "group",
                                        .packed_as = "mxfp8-quantized",
                                        .grid = kE4m3Grid,
                                        .to = "mxfp8",
                                        .summary = "E4M3 weights with a power of two for each 32"};
/// Codes in a format whose name is not known.
inline constexpr WeightFormatRow kOther{.name = "a format that is not known", .key = "", .coded = true};
}  // namespace weight_formats

constexpr WeightFormat::WeightFormat() : row_(&weight_formats::kFloat) {}
inline constexpr WeightFormat WeightFormat::kFloat{weight_formats::kFloat};
inline constexpr WeightFormat WeightFormat::kFp8{weight_formats::kFp8};
inline constexpr WeightFormat WeightFormat::kMxfp4{weight_formats::kMxfp4};
inline constexpr WeightFormat WeightFormat::kMxfp6{weight_formats::kMxfp6};
inline constexpr WeightFormat WeightFormat::kMxfp8{weight_formats::kMxfp8};
inline constexpr WeightFormat WeightFormat::kNvfp4{weight_formats::kNvfp4};
inline constexpr WeightFormat WeightFormat::kNvfp4Bs32{weight_formats::kNvfp4Bs32};
inline constexpr WeightFormat WeightFormat::kInt4{weight_formats::kInt4};
inline constexpr WeightFormat WeightFormat::kOther{weight_formats::kOther};

/// The formats of one power of two for each 32 weights that are written, each by the word `to` of a rule.
inline constexpr WeightFormat kMxFormats[] = {WeightFormat::kMxfp8, WeightFormat::kMxfp6,
                                              WeightFormat::kMxfp4};

}  // namespace twofour
