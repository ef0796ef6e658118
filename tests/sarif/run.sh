#!/usr/bin/env bash
# Holds what `lint --sarif` writes against the schema of SARIF 2.1.0. Argument: the program.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
environment=$here/../../build/sarif
program=${1:?program}
if ! cmp -s "$here/packages.txt" "$environment/made-of.txt"; then
  rm -rf "$environment"
  python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check --no-deps -r "$here/packages.txt"
  cp "$here/packages.txt" "$environment/made-of.txt"
fi
exec "$environment/bin/python" "$here/check_schema.py" "$program"
