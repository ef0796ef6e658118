#pragma once
#include "kernels/device/stream.h"

namespace twofour {

/// Some of the current device's multiprocessors, which is all that its streams run on (a green context).
class GreenContext {
 public:
  /// Throws Error where the device, its driver or the build knows no green contexts.
  explicit GreenContext(unsigned multiprocessors);
  GreenContext(const GreenContext&) = delete;
  GreenContext& operator=(const GreenContext&) = delete;
  ~GreenContext();
  unsigned multiprocessors() const { return multiprocessors_; }  ///< as many as asked for, or a few more
  cuda::Stream stream() const;                                   ///< a new one, the caller's

 private:
  void* context_ = nullptr;  ///< CUgreenCtx
  unsigned multiprocessors_ = 0;
};

}  // namespace twofour
