#!/usr/bin/env bash
# All of the module: types, the tests that need NumPy alone, those with torch and transformers, vLLM's classes, and the
# notebook. Makes the environments of tests/loaders where they are missing. Arguments: the program, libtwofour.so.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
TWOFOUR=$(realpath "${1:?program}") TWOFOUR_LIBRARY=$(realpath "${2:?library}")
export TWOFOUR TWOFOUR_LIBRARY HF_HUB_OFFLINE=1
environments=$root/build/loaders
"$root/tests/loaders/environments/make.sh" "$environments" vllm
export PRODUCERS=$environments/producers/bin/python

# mypy, whose version the results depend on
types=$root/build/python-types
[ -x "$types/bin/mypy" ] || { python3 -m venv "$types" && "$types/bin/pip" install --quiet mypy==2.4.1 numpy==2.4.6; }
(cd "$root/tools/python" && "$types/bin/mypy" twofour make_types.py make_reference.py make_c_reference.py \
  "$here/typed_use.py")

"$PRODUCERS" "$here/run.py" test_module test_calls test_objects test_misuse test_runtime test_notebook test_blocks \
  test_transformers
"$environments/vllm/bin/python" "$here/run.py" test_vllm
