#!/usr/bin/env bash
# Installs what is needed, builds twofour and runs its tests. Arguments go to CMake.
set -euo pipefail
cd "$(dirname "$0")/.."

.ci/setup
cmake --preset cuda "$@"  # without nvcc this is the CPU-only build, and says so
cmake --build --preset cuda
ctest --preset cuda -j"$(nproc)"
