#!/usr/bin/env bash
# Makes a small checkpoint and runs layer.c on it. TWOFOUR names the program, LAYER the compiled example.
set -euo pipefail
twofour=${TWOFOUR:-twofour} layer=${LAYER:-./layer}
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"

"$twofour" synth checkpoint --shape qwen3-moe --layers 1 --small -q
"$layer" checkpoint artifact | tee output
# It converted, proved and ran.
grep -q '^convert: exit code 0, ' output
grep -q '^validate: exit code 0, ' output
grep -q '^model.layers.0.mlp.experts: v7, 8 experts, hidden 256, intermediate 128$' output
[ "$(grep -c '^token [0-3]: expert [0-7] first, mean square of the output [0-9.]*[1-9]' output)" = 4 ]
"$twofour" validate artifact --source checkpoint -q

# What fails is said, and how to go on.
code=0
"$layer" checkpoint artifact > output 2> errors || code=$?
[ $code = 2 ]
grep -q 'convert: artifact: expected an absent or empty directory.*(the second argument is a directory to write)' errors
code=0
"$layer" nothing other > output 2> errors || code=$?
[ $code = 2 ]
grep -q 'convert: nothing: no such file or directory (the first argument is a checkpoint)' errors
