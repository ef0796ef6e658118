#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/module_parts.h"
#include "lib/base/findings/problems.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/source/checkpoint/linears.h"

namespace twofour {

/// The tensors of a checkpoint, sound or not, and how to read them.
struct TensorAccess {
  std::span<const TensorInfo> tensors;  ///< sorted by name
  /// Checkpoint::read(). Empty: nothing is read, and terms that depend on values are not found.
  std::function<void(size_t, uint64_t, std::span<uint8_t>)> read{};
  const std::vector<bool>* whole = nullptr;  ///< which tensors can be read; nullptr: all
  /// The file of a tensor. Empty: __metadata__ of headers is ignored.
  std::function<const Shard&(size_t)> file{};
  const Json* config = nullptr;  ///< config.json, for the number of experts; nullptr: unknown
  /// Computed codes, which are in no file.
  std::vector<size_t> computed{};
  bool is_part = false;  ///< other files hold more tensors, so no tensor counts as missing
};
TensorAccess access_to(const Checkpoint& checkpoint);

/// A reason why a linear's weights are not given by its codes and scales alone.
struct WeightTerm {
  size_t tensor;                 ///< the cause: "X.pre_quant_scale", or the codes
  std::optional<size_t> weight;  ///< the linear's weights; nullopt: they are missing
  std::string linear;            ///< X
  const char* rule;              ///< lint rule
  std::string problem;           ///< "expected X, found Y", without the place
  bool is_in_header = false;     ///< stated in a file's __metadata__, which no output has
  /// For a term without a linear: the module or block that it may change, or (empty) everything.
  std::optional<std::string> scope{};
  /// True if the term may change a module of that name.
  bool concerns(std::string_view module) const;
};

/// Returns all terms, in the order of their tensors, by the list of formats/module_parts.h:
///   * a tensor beside a linear in any format that changes what its weights mean. Zero points and orders of
///     groups count by their values: zeros, and groups in order, change nothing. Beside INT4 they are no
///     terms, since its decoders account for them;
///   * such a tensor without its linear: below experts that each have their own, under another prefix, in an
///     adapter's file;
///   * a tensor beside codes with a name that is not on the list, also behind further dots;
///   * scales of another dialect beside codes that have their own;
///   * scales, shapes and zero points without codes;
///   * experts stored as one matrix [E * N, K];
///   * a shape beside codes that differs from theirs (for INT4, their reader checks it);
///   * weights stored twice: in two formats, or as a stack beside single experts;
///   * an entry of any file's __metadata__ that describes codes.
std::vector<WeightTerm> find_weight_terms(const TensorAccess& access);

/// True if a term's values change nothing, or if no values are read.
bool changes_nothing(const TensorAccess& access, size_t tensor, Harmless harmless);

/// Tensors beside codes that change nothing but make engines fail: a quantizer's counters.
std::vector<size_t> find_quantizer_state(std::span<const TensorInfo> tensors);

/// Adds to `problems` all that changes the meaning of the weights that are read: terms of tensors that
/// `is_read`, terms without weights or in a header, find_config_terms(), and invalid settings of config.json.
/// For `linears`, the known ones that are read, adds zero points that contradict the config. For every
/// command that reads codes as weights and writes others.
void refuse_changed_weights(const Checkpoint& checkpoint, const std::function<bool(size_t)>& is_read,
                            std::span<const Linear> linears, Problems& problems);

/// Throws Error if a header describes codes, since no output could repeat it. For commands that copy tensors
/// as they are.
void refuse_described_codes(const Checkpoint& checkpoint);

}  // namespace twofour
