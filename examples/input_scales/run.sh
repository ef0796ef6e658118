#!/usr/bin/env bash
# Makes small checkpoints of DeepSeek-V3 and V4 and calibration dumps as ModelOpt saves them, turns these into files of
# largest magnitudes, quantizes the experts with their input scales, and compares every scale with the dumps. TWOFOUR names
# the program.
set -euo pipefail
cd "$(dirname "$0")"
python=${PYTHON:-python3}

if ! "$python" -c 'import torch' 2>/dev/null; then
  echo "skipped: no torch for $python"
  exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
for model in deepseek-v3 deepseek-v4; do
  dialect=$([ $model = deepseek-v4 ] && echo "--dialect released" || true)
  "$TWOFOUR" synth "$work/$model" --shape $model $dialect --small --layers 4 --experts 8 --quiet
  "$python" check.py dump "$work/$model" "$work/$model-dumps"
  "$python" amax_to_safetensors.py "$work/$model-dumps" "$work/$model.safetensors" --fill
  printf 'format: 1\nrules:\n  - {match: experts, to: nvfp4, input_scale: "from %s"}\n' "$work/$model.safetensors" \
    > "$work/recipe.yaml"
  "$TWOFOUR" convert "$work/$model" "$work/$model-nvfp4" --recipe "$work/recipe.yaml" --quiet
  "$TWOFOUR" validate "$work/$model-nvfp4" --source "$work/$model" --quiet
  "$python" check.py compare "$work/$model-nvfp4" "$work/$model-dumps"
done
for fault in rank run shape nan missing; do
  rm -rf "$work/bad"
  "$python" check.py fault "$work/deepseek-v4-dumps" "$work/bad" $fault
  if "$python" amax_to_safetensors.py "$work/bad" "$work/bad.safetensors" 2> "$work/message"; then
    echo "expected an error for $fault, found none"
    exit 1
  fi
  grep -q "expected" "$work/message" && [ ! -e "$work/bad.safetensors" ]
done
