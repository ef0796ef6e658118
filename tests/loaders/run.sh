#!/usr/bin/env bash
# Makes the environments where they are missing, tests the scripts, and holds the program against the loaders.
# Arguments: the program, then what run.py takes.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
environments=$here/../../build/loaders
export TWOFOUR=${1:?program} VLLM=$environments/vllm/bin/python
shift
"$here/environments/make.sh" "$environments" vllm
"$environments/producers/bin/python" "$here/test_dequantize.py"
"$environments/producers/bin/python" "$here/../../examples/statistics/test_collect.py" "$TWOFOUR"
"$VLLM" "$here/../../examples/statistics/test_vllm_worker.py" "$TWOFOUR"
"$VLLM" "$here/test_resolve.py"
headers=$(mktemp -d)
trap 'rm -rf "$headers"' EXIT
"$environments/producers/bin/python" "$here/families_golden.py" "$headers"
diff -r "$headers" "$here/../golden/families"
"$VLLM" "$here/test_lookup.py"
"$environments/producers/bin/python" "$here/run.py" "$@"
