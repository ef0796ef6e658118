#pragma once
#include <filesystem>
#include <optional>
#include <span>
#include <string>

#include "formats/atom.h"
#include "formats/layouts/layout.h"
#include "kernels/device/device_memory.h"
#include "lib/prove/validate/validate.h"
#include "lib/source/checkpoint/checkpoint.h"
#include "lib/write/plan/plan.h"

namespace twofour {

/// Packs a target on the CUDA device by the kernels of device_pack.h, and compares it with an artifact. It
/// works piece by piece, so that the device has one piece at a time. The weights come from the slow path.
class DeviceDerivation {
 public:
  /// `layout` is a name in formats/layouts/layouts.h. Throws Error if there is no CUDA device.
  explicit DeviceDerivation(std::string layout);

  /// Compares a piece of expert `e`. `shape.e` must be 1. `groups` holds its weights [N, K/16], with rows of
  /// gate before rows of up and with folded block scales. `parts[p]` is part p of the piece in the artifact.
  /// Throws Error on errors of CUDA.
  void compare(int64_t e, Shape shape, std::span<const DenseGroup> groups,
               std::span<const std::span<const uint8_t>> parts);
  /// A text about the differences of all pieces. Empty if there are none.
  std::optional<std::string> finish() const;

 private:
  std::string layout_;
  cuda::DeviceStream stream_;
  uint64_t wrong_ = 0;
  int64_t first_expert_ = 0;
};

/// Dequantizes modules of the source on the CUDA device, and compares the bytes with an artifact in BF16. No
/// kernel reads stacks whose K is outermost or writes stacks from single experts. Each of them becomes a
/// note.
void check_dequantized_on_cuda(const Checkpoint& artifact, const Checkpoint& source, const Plan& plan,
                               ValidateReport& report);

/// On the CUDA device, runs layers of an artifact that are in a layout, with seeded activations. `options`
/// sample the layers. Compares their output with the reference in double over the stored weights. Adds to
/// `report`.
void check_layers_on_cuda(const Checkpoint& artifact, const ValidateOptions& options, ValidateReport& report);

}  // namespace twofour
