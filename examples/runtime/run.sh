#!/usr/bin/env bash
# Runs layers of small artifacts from Python: makes a checkpoint, converts it to each layout, and lets moe.py compare what
# libtwofour.so gives for torch tensors with plain torch. TWOFOUR and LIBTWOFOUR name the program and the library; DEVICE
# is cpu or cuda (default: what torch finds).
set -euo pipefail
cd "$(dirname "$0")"
python=${PYTHON:-python3}

if ! "$python" -c 'import torch' 2>/dev/null; then
  echo "skipped: no torch for $python"
  exit 0
fi

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$TWOFOUR" synth "$work/checkpoint" --shape qwen3-next --layers 1 --experts 12 --quiet
for layout in v7 v7-packed g8; do
  "$TWOFOUR" convert "$work/checkpoint" "$work/$layout" --to $layout --quiet
  "$TWOFOUR" convert "$work/$layout" "$work/$layout-bf16" --to bf16 --quiet
  "$python" moe.py "$work/$layout" --dense "$work/$layout-bf16" --library "$LIBTWOFOUR" ${DEVICE:+--device "$DEVICE"} \
    --layer model.layers.0.mlp.experts
  rm -rf "$work/$layout" "$work/$layout-bf16"
done
