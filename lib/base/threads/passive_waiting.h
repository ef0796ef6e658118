#pragma once
#include <thread>

namespace twofour {

/// While this object lives, OpenMP's threads that wait soon sleep. By default libgomp lets them spin for
/// milliseconds, which takes processor time from other programs. With more OpenMP threads than processors it
/// does not, so the object keeps a thread that is one too many and does nothing. Source: GOMP_SPINCOUNT in
/// libgomp's manual. An environment that sets OMP_WAIT_POLICY or GOMP_SPINCOUNT decides itself.
class PassiveWaiting {
 public:
  /// Throws Error like start_thread().
  PassiveWaiting();

 private:
  std::jthread owner_;  ///< has OpenMP's further thread until it is asked to stop
};

}  // namespace twofour
