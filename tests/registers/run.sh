#!/usr/bin/env bash
# Looks for registers that are overwritten while a wgmma may still read them. Argument: the object file of the kernels.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
environment=$here/../../build/registers
object=${1:?object file}
if ! cmp -s "$here/packages.txt" "$environment/made-of.txt"; then
  rm -rf "$environment"
  python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check --no-deps -r "$here/packages.txt"
  cp "$here/packages.txt" "$environment/made-of.txt"
fi
programs=$(dirname "$(find "$environment" -name cuobjdump)")
chmod +x "$programs"/*
PATH=$programs:$PATH cuobjdump -sass "$object" | "$here/find_overwritten.py"
