#!/usr/bin/env bash
# How long a newcomer's build takes, in a unit that does not depend on the machine: user CPU time of the release build
# without tests and without CUDA, over that of compiling one file that only includes CLI11 with the flags of the same
# build. Arguments go to CMake. Exit code 1 if the ratio is above LIMIT (default 34).
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LC_ALL=C CCACHE_DISABLE=1
unset CMAKE_CXX_COMPILER_LAUNCHER

# User CPU seconds of a command and its children.
user_time() {
  local TIMEFORMAT=%U
  { time "$@" >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }; } 2>&1
}

cmake -S "$root" -B "$work/build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DTWOFOUR_TESTS=OFF -DTWOFOUR_CUDA=OFF "$@" >"$work/log"
# The compiler with the flags of an optimized file, up to where its own names begin.
command=$(ninja -C "$work/build" -t commands | grep -m1 -- '-O3 .*/formats/')
read -ra compile <<<"${command%% -MD *}"
echo '#include <CLI/CLI.hpp>' >"$work/cli11.cpp"

# Before and after the build, since a machine's speed drifts.
before=$(user_time "${compile[@]}" -c "$work/cli11.cpp" -o "$work/cli11.o")
build=$(user_time cmake --build "$work/build")
after=$(user_time "${compile[@]}" -c "$work/cli11.cpp" -o "$work/cli11.o")
awk -v build="$build" -v before="$before" -v after="$after" -v limit="${LIMIT:-34}" 'BEGIN {
  ratio = build / ((before + after) / 2)
  printf "build %.1f s of user CPU, CLI11 %.1f and %.1f s: ratio %.1f (at most %s)\n", build, before, after, ratio, limit
  exit ratio > limit }'
