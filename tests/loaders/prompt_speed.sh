#!/usr/bin/env bash
# Times a prompt of SmolLM2, on real weights, and prompts and tokens of hybrids and of DeepSeek-V4 against transformers.
# Argument: twofour.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
environments=$here/../../build/loaders
program=${1:?twofour}
"$here/environments/make.sh" "$environments" smollm2
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
python=$environments/smollm2/bin/python
"$python" "$here/../../examples/smollm2/make_checkpoint.py" "$made/bf16" --variant bf16
for model in "$made/bf16" qwen3_next deepseek_v4; do
  "$python" "$here/prompt_speed.py" "$program" "$model"
done
