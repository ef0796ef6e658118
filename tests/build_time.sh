#!/usr/bin/env bash
# How long a newcomer's build takes, in a unit that does not depend on the machine: user CPU time of the release build
# without tests and without CUDA, over that of compiling one file that only includes CLI11 with the flags of the same
# build. Arguments go to CMake. Exit code 1 if the ratio is above LIMIT for 1,000 lines of what is built (default 0.8).
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
command=$(ninja -C "$work/build" -t commands | awk '/-O3 .*\/formats\// && !found++')
read -ra compile <<<"${command%% -MD *}"
echo '#include <CLI/CLI.hpp>' >"$work/cli11.cpp"

# Medians of five before and after the build: single runs of one file differ by a half on a shared machine, and a
# machine's speed drifts.
median_of_cli11() {
  for _ in 1 2 3 4 5; do user_time "${compile[@]}" -c "$work/cli11.cpp" -o "$work/cli11.o"; done | sort -n | sed -n 3p
}
before=$(median_of_cli11)
build=$(user_time cmake --build "$work/build")
after=$(median_of_cli11)
lines=$(cd "$root" && find formats kernels lib tools \( -name '*.cpp' -o -name '*.h' \) -exec cat {} + | wc -l)
awk -v build="$build" -v before="$before" -v after="$after" -v lines="$lines" -v limit="${LIMIT:-0.8}" 'BEGIN {
  ratio = build / ((before + after) / 2); most = limit * lines / 1000
  printf "build %.1f s of user CPU, CLI11 %.1f and %.1f s: ratio %.1f (at most %.1f for %d lines)\n",
    build, before, after, ratio, most, lines
  exit ratio > most }'
