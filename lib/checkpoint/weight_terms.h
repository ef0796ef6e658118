#pragma once
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/module_parts.h"
#include "lib/checkpoint/checkpoint.h"
#include "lib/checkpoint/linears.h"
#include "lib/findings/problems.h"

namespace twofour {

/// The tensors of a checkpoint, sound or not, and how to read them.
struct TensorAccess {
  std::span<const TensorInfo> tensors;  ///< sorted by name
  /// As Checkpoint::read; empty: nothing is read, and terms that depend on values are not found.
  std::function<void(size_t, uint64_t, std::span<uint8_t>)> read{};
  const std::vector<bool>* whole = nullptr;  ///< which tensors can be read; nullptr: all
  /// The file of a tensor; empty: what headers say beside their tensors is not looked at.
  std::function<const Shard&(size_t)> file{};
  const Json* config = nullptr;  ///< config.json, for counts of experts; nullptr: not known
  /// Codes that are computed, of which the files hold no module.
  std::vector<size_t> computed{};
  bool is_part = false;  ///< other files hold more tensors: nothing is missing
};
TensorAccess access_to(const Checkpoint& checkpoint);

/// Why the numbers of a linear are not what its codes and scales say alone.
struct WeightTerm {
  size_t tensor;                 ///< that says so: "X.pre_quant_scale", or the codes
  std::optional<size_t> weight;  ///< the linear's weights; nothing: they are missing
  std::string linear;            ///< X
  const char* rule;              ///< of lint
  std::string problem;           ///< "expected X, found Y", without where
  bool is_in_header = false;     ///< a file's __metadata__ says so, which no output has
  /// Of a term without a linear: what it may change is below here, a module, a block or, empty, everything.
  std::optional<std::string> scope{};
  /// Whether a module of that name is what it may change.
  bool concerns(std::string_view module) const;
};

/// All of them, in the order of their tensors, by the list of formats/module_parts.h:
///   * a tensor beside a linear in any format that changes what its weights mean. Zero points and orders of
///     groups count by their values: zeros, and groups in order, change nothing. Beside INT4, whose decoders
///     account for them, they are no such terms;
///   * such a term of no linear that is there: below the experts where each has its own, under another
///   prefix,
///     in an adapter's file;
///   * a tensor beside codes by a name that is not on the list, also behind further dots;
///   * scales of another dialect beside codes that have their own;
///   * scales, shapes and zero points without codes;
///   * experts that are stored as one matrix [E * N, K];
///   * a shape beside codes that is another than theirs; beside INT4 their reader looks at it;
///   * weights that two tensors hold: in two formats, or a stack beside experts of their own;
///   * an entry of __metadata__, in any file, that describes codes.
std::vector<WeightTerm> find_weight_terms(const TensorAccess& access);

/// Whether a term's values change nothing. Where none are read, they are taken for such.
bool changes_nothing(const TensorAccess& access, size_t tensor, Harmless harmless);

/// Tensors beside codes that change nothing and that engines stop at: what a quantizer counted.
std::vector<size_t> find_quantizer_state(std::span<const TensorInfo> tensors);

/// Adds to `problems` what changes the meaning of the weights that are read: terms of those whose tensor
/// `is_read`, terms without any weights or in a header, what configs say of all (find_config_terms), and
/// settings in config.json that are not what they must be; of `linears`, those among them that are known,
/// zero points that the config contradicts. For every command that reads codes as weights and writes others.
void refuse_changed_weights(const Checkpoint& checkpoint, const std::function<bool(size_t)>& is_read,
                            std::span<const Linear> linears, Problems& problems);

/// Throws Error where a header describes codes, which no output of these could repeat. For commands that copy
/// tensors as they are.
void refuse_described_codes(const Checkpoint& checkpoint);

}  // namespace twofour
