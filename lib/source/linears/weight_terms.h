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
#include "lib/source/linears/linears.h"

namespace twofour {

/// The tensors of a checkpoint, valid or not, and functions that read them.
struct TensorAccess {
  std::span<const TensorInfo> tensors;  ///< sorted by name
  /// Reads bytes of a tensor like Checkpoint::read(). Empty: no values are read, and terms that depend on
  /// values are not found.
  std::function<void(size_t, uint64_t, std::span<uint8_t>)> read{};
  const std::vector<bool>* whole = nullptr;  ///< for each tensor, true if it can be read; nullptr: all can
  /// Returns the file of a tensor. Empty: __metadata__ of headers is ignored.
  std::function<const Shard&(size_t)> file{};
  const Json* config = nullptr;  ///< config.json, for the number of experts; nullptr: unknown
  /// Positions of codes that are computed and are in no file, sorted.
  std::vector<size_t> computed{};
  bool is_part = false;  ///< other files hold more tensors, so that no tensor counts as missing
};
TensorAccess access_to(const Checkpoint& checkpoint);

/// A term: something in a checkpoint that changes what a linear's weights mean, so that its codes and scales
/// alone do not give them.
struct WeightTerm {
  size_t tensor;                 ///< the tensor that is the cause: "X.pre_quant_scale", or the codes
  std::optional<size_t> weight;  ///< the weights of the linear; nullopt: they are missing
  std::string linear;            ///< name X of the linear
  const char* rule;              ///< id of the lint rule that reports the term
  std::string problem;           ///< "expected X, found Y", without the place
  bool is_in_header = false;     ///< a file's __metadata__ states the term; no output has that metadata
  /// For a term without a linear: the module or block that it may change. Empty: it may change everything.
  std::optional<std::string> scope{};
  /// True if the term may change the module of that name.
  bool concerns(std::string_view module) const;
};

/// Returns all terms of a checkpoint, in the order of their tensors. formats/module_parts.h lists names of
/// tensors that change a linear. These are terms:
///   * a tensor beside a linear of any format that changes what the linear's weights mean. Zero points and
///     orders of groups count by their values: all zeros, and groups in order, change nothing. Beside INT4
///     they are no terms, since the decoders of INT4 account for them;
///   * a tensor with a name from the list whose linear is missing: below experts that each have their own,
///     under another prefix, or in an adapter's file;
///   * a tensor beside codes whose name is not on the list, even if its name has further parts;
///   * a tensor beside the floats of a linear, of a stack or of an embedding whose name is not on the list,
///     even if its name has further parts;
///   * scales of another dialect beside codes that have their own scales;
///   * scales, shapes and zero points without codes;
///   * experts stored as one matrix [E * N, K];
///   * a shape beside codes that differs from the codes' shape (for INT4, the reader of codes checks it);
///   * weights stored twice (in two formats, or as a stack beside single experts), and linears in F64;
///   * an entry of a file's __metadata__ that describes codes.
std::vector<WeightTerm> find_weight_terms(const TensorAccess& access);

/// True if the values of a term's tensor change nothing, or if values are not read.
bool changes_nothing(const TensorAccess& access, size_t tensor, Harmless harmless);

/// Returns tensors beside codes that change no weights but make engines fail, such as the counters of a
/// quantizer.
std::vector<size_t> find_quantizer_state(std::span<const TensorInfo> tensors);

/// Adds to `problems` everything that changes the meaning of the weights that are read: terms of tensors for
/// which `is_read` is true, terms without weights or in a header, the settings of find_config_terms(), and
/// invalid settings of config.json. `linears` are the known linears that are read; their zero points must not
/// contradict the config. Codes for which `is_described` is true count, too, since a new configuration
/// describes them, but terms without a linear of their own do not concern them. Every command that reads
/// codes as weights and writes other tensors calls this function.
void refuse_changed_weights(const Checkpoint& checkpoint, const std::function<bool(size_t)>& is_read,
                            std::span<const Linear> linears, Problems& problems,
                            const std::function<bool(size_t)>& is_described = {});

/// Throws Error if a file's header describes codes, since no output can repeat the description. Commands that
/// copy tensors unchanged call this function.
void refuse_described_codes(const Checkpoint& checkpoint);

}  // namespace twofour
