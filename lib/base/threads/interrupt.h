#pragma once

namespace twofour {

/// Asks running work to stop at the next safe point. Safe to call from a signal handler.
void request_interrupt() noexcept;

/// Withdraws the request, for a process that goes on after a run was stopped.
void clear_interrupt() noexcept;

/// Throws Interrupted if a stop was requested. Loops over files call it between pieces of work.
void check_interrupt();

}  // namespace twofour
