#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "formats/json.h"
#include "kernels/device/isa.h"
#include "kernels/pack/prune_pack.h"
#include "lib/base/findings/finding.h"
#include "lib/base/io/hash.h"

namespace twofour {

/// The cost of pruning some weights. Sums of exact integers in a fixed order: the same figures for any number
/// of jobs and any instruction set.
struct Quality {
  double energy = 0;       ///< sum of squared weights
  double kept_energy = 0;  ///< of the weights that are not pruned
  uint64_t quads = 0, tied = 0;
  double fold_energy = 0;  ///< sum of squared weights with a folded global scale, before
  double fold_error = 0;   ///< sum of squared changes by rounding their block scales again

  void add(const PruneStats& stats, double global_scale);
  Quality& operator+=(const Quality& other);
  bool operator==(const Quality&) const = default;

  double retained_energy() const { return energy > 0 ? kept_energy / energy : 1; }
  /// Frobenius norm of the dropped weights over that of all weights.
  double relative_error() const;
  /// In dB; infinite if nothing was lost.
  double snr_db() const;
  double cosine() const;
  /// The share of the quads, or of the octets of 4:8-paired.
  double tied_share() const { return quads > 0 ? static_cast<double>(tied) / static_cast<double>(quads) : 0; }
};

/// The error of encoding some weights. Sums go row by row, so that they are the same for any number of jobs,
/// any row blocks and any instruction set.
struct EncodeError {
  double energy = 0;  ///< sum of squared weights
  double error = 0;   ///< sum of squared changes

  /// Adds rows of weights [., k] and the values that are read back for them.
  void add(std::span<const float> weights, std::span<const float> back, int64_t k, Isa isa);
  /// Adds weights that are read back unchanged.
  void add_exact(std::span<const float> weights, int64_t k, Isa isa);
  EncodeError& operator+=(const EncodeError& other);
  /// In Frobenius norm.
  double relative_error() const;
  /// In dB; infinite if nothing was lost.
  double snr_db() const;
  bool operator==(const EncodeError&) const = default;
};

/// Bytes of a matrix that differ from the reference checkpoint's.
struct KeptDifference {
  bool compared = false;
  uint64_t codes = 0, scales = 0;  ///< bytes that differ
  uint64_t bytes = 0;              ///< compared
  std::string first;               ///< where, expected and found; empty if all are equal
  bool operator==(const KeptDifference&) const = default;
};

/// Tiles of FP8 weights that share a scale, in a cast from a format of four bits.
struct CastTiles {
  uint64_t count = 0, inexact = 0;  ///< inexact: some value was rounded
  bool operator==(const CastTiles&) const = default;
};

/// The loss that encoding causes in the output of some rows, by statistics of their inputs.
struct OutputLoss {
  std::string method = {};  ///< "joint", "gptq", "wanda" or "rtn"; empty: there are no statistics
  double loss = 0;          ///< sum over rows of e H e', e the change of a row, H the mean of x x'
  double energy = 0;        ///< the same of the rows themselves
  /// The same with sums over other tokens, if the file has them; otherwise 0.
  double heldout_loss = 0, heldout_energy = 0;
  /// The sum over rows of e He e', He the mean of inputs weighted by the loss's squared gradients: the
  /// increase of the model's loss, up to a factor that all matrices share. 0 if the file has no He.
  double expected_loss = 0;
  OutputLoss& operator+=(const OutputLoss& other);
  /// A ratio of squares: the square root is a relative error of the output.
  double relative() const { return energy > 0 ? loss / energy : 0; }
  double heldout_relative() const { return heldout_energy > 0 ? heldout_loss / heldout_energy : 0; }
  bool operator==(const OutputLoss&) const = default;
};

/// The result of encoding one matrix.
struct EncodedResult {
  Hash128 source;             ///< of the weights as float32, row after row
  uint32_t global_scale = 0;  ///< float32 bits as written; 0 of FP8
  bool cast = false;          ///< from four bits, lossless except for inexact tiles
  CastTiles tiles;            ///< of FP8
  uint64_t lost = 0;          ///< of MX formats: weights that were not 0, see count_lost_mx()
  EncodeError error;          ///< of the written weights
  EncodeError pruned_after;   ///< if the pattern were applied to the codes instead
  OutputLoss output;
  KeptDifference kept;
  std::vector<std::string> problems;  ///< weights that cannot be encoded: nothing was written
  Findings findings;
  bool operator==(const EncodedResult&) const = default;
};

/// A quality as numbers that read back unchanged.
Json to_json(const Quality& quality);
Quality quality_from_json(const Json& json);
/// Figures for twofour.json, rounded so that the last bit of a library's logarithm does not show.
Json quality_figures(const Quality& quality);

/// The same for the result of quantizing a matrix.
Json to_json(const EncodedResult& result);
EncodedResult encoded_from_json(const Json& json);
Json error_figures(const EncodeError& error);
void add_loss_figures(const OutputLoss& loss, Json& quality);

}  // namespace twofour
