#!/usr/bin/env bash
# The main job from nothing: installs what is needed, builds twofour, makes a small checkpoint with the names and shapes of
# Qwen3-Next, converts it to the 2:4 layout v7 and proves the result. TWOFOUR=/path/to/twofour skips install and build.
set -euo pipefail
cd "$(dirname "$0")/.."

if [ -z "${TWOFOUR:-}" ]; then
  .ci/setup
  cmake --preset release -DTWOFOUR_TESTS=OFF
  cmake --build --preset release
  TWOFOUR=build/release/tools/twofour
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
show() { printf '\n$ twofour %s\n' "$*"; "$TWOFOUR" "$@"; }

show synth "$work/checkpoint" --shape qwen3-next --layers 1 --experts 16
show inspect "$work/checkpoint"
show convert "$work/checkpoint" "$work/artifact" --to v7
show validate "$work/artifact" --source "$work/checkpoint"
printf '\nThe program is %s. Next: "You have a quantized checkpoint" in README.md.\n' "$TWOFOUR"
