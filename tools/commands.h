#pragma once
#include "tools/cli/program.h"

namespace twofour {

/// The program `twofour` with all its commands.
Program twofour_program();

}  // namespace twofour
