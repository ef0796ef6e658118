#!/usr/bin/env bash
# Times a prompt of SmolLM2 against transformers, on real weights. Argument: twofour.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
environments=$here/../../build/loaders
program=${1:?twofour}
"$here/environments/make.sh" "$environments" smollm2
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
python=$environments/smollm2/bin/python
"$python" "$here/../../examples/smollm2/make_checkpoint.py" "$made/bf16" --variant bf16
"$python" "$here/prompt_speed.py" "$program" "$made/bf16"
