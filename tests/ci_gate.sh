#!/usr/bin/env bash
# The gate for CI lets sound checkpoints pass, refuses faulty ones, and calls what it could not check trouble.
set -euo pipefail
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

expect() {
  local want=$1 code=0
  shift
  OUT=$work/out "$@" >"$work/log" 2>&1 || code=$?
  if [ $code -ne "$want" ]; then
    cat "$work/log"
    echo "$*: expected exit code $want, found $code"
    exit 1
  fi
}
gate=examples/ci/gate.sh

"$TWOFOUR" synth "$work/sound" --shape tiny --quiet
"$TWOFOUR" convert "$work/sound" "$work/artifact" --to v7 --quiet
expect 0 $gate "$work/sound"
grep -q '"version": "2.1.0"' "$work/out/lint.sarif"
grep -q 'twofour report' "$work/out/lint.html"
expect 0 $gate "$work/artifact"
expect 0 $gate "$work/artifact" "$work/sound"
grep -q 'twofour report' "$work/out/validate.html"

# Gate and up with unequal scales; a warning that is let pass; a byte of an artifact that changed.
expect 1 $gate tests/golden/modelopt-mixtral-uneven/src
grep -q unequal-global-scales "$work/log"
LINT="--rule unequal-global-scales=note" expect 0 $gate tests/golden/modelopt-mixtral-uneven/src
cp -r "$work/artifact" "$work/changed"
files=("$work"/changed/*.safetensors)
weights=${files[0]}
size=$(stat -c %s "$weights")
byte=$(od -An -tu1 -j $((size - 1)) -N1 "$weights" | tr -d ' ')
printf '%b' "\\x$(printf %02x $((byte ^ 1)))" | dd of="$weights" bs=1 seek=$((size - 1)) conv=notrunc status=none
expect 1 $gate "$work/changed"
expect 1 $gate "$work/changed" "$work/sound"

# Profiles; known findings pass, new ones do not.
cp -r "$work/sound" "$work/bare"
rm "$work/bare/tokenizer.json" "$work/bare/tokenizer_config.json" 2>/dev/null || true
PROFILE=strict expect 1 $gate "$work/bare"
PROFILE=loud expect 2 $gate "$work/sound"
"$TWOFOUR" lint tests/golden/modelopt-mixtral-uneven/src --write-baseline "$work/known findings.json" --quiet
BASELINE="$work/known findings.json" expect 0 $gate tests/golden/modelopt-mixtral-uneven/src
BASELINE="$work/nothing.json" expect 2 $gate "$work/sound"

# The composite action: its step as GitHub runs it, by the environment that its inputs give.
action=examples/ci/action.yml
for name in DIRECTORY SOURCE PROFILE BASELINE LINT TWOFOUR OUT; do grep -q "^        $name: \${{ inputs\.[a-z]* }}$" $action; done
step=$(sed -n "s/^      run: '\(.*\)'$/\1/p" $action)
export GITHUB_ACTION_PATH=examples/ci
PROFILE=serve DIRECTORY="$work/sound" SOURCE="" expect 0 bash -e -c "$step"
PROFILE=serve DIRECTORY="$work/artifact" SOURCE="$work/sound" expect 0 bash -e -c "$step"
PROFILE=serve DIRECTORY="$work/changed" SOURCE="" expect 1 bash -e -c "$step"
PROFILE=serve DIRECTORY="$work/no such thing" SOURCE="" expect 2 bash -e -c "$step"

expect 2 $gate
expect 2 $gate "$work/nothing"
expect 2 $gate "$work/sound" "$work/sound"
TWOFOUR=/nonexistent expect 2 $gate "$work/sound"
echo "the gate passes what is sound and refuses the rest"
