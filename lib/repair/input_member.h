#pragma once
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>

namespace twofour {

/// A linear, or an expert of a stack, with the scale of its inputs.
struct InputMember {
  std::string module, kind = {};
  std::string tensor = {};        ///< name of the scale
  std::optional<size_t> at = {};  ///< its tensor; absent if it is missing
  size_t place = 0;               ///< among the numbers of the tensor
  bool divides = false, is_fp8 = false;
  float stored = 0, multiplier = 0;  ///< the multiplier is 0 without a valid scale
  bool is_far = false;               ///< valid, but far above the others of its projection
  float theirs = 0;                  ///< the donor's scale as stored; 0: it has no valid one

  bool is_valid() const { return multiplier > 0; }
};

/// The factor by which inputs are multiplied for a stored scale; 0 if it is not valid.
float multiplier_of(float stored, bool divides);

/// The projection of a layer that a module belongs to. Experts of a block have two: down, and gate and up.
std::string projection_of(const InputMember& member);
/// The name that linears with one input share. Experts of a stack are not fused.
std::string fused_name(const InputMember& member);
bool is_gate_or_up(const InputMember& member);
/// The kind of a projection over layers.
std::string kind_over_layers(const InputMember& member);
int64_t layer_of(const InputMember& member);

}  // namespace twofour
