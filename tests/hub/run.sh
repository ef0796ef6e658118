#!/usr/bin/env bash
# Lets huggingface_hub read the server of the tests, and the program beside it. Arguments: the server, the program.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
environment=$here/../../build/hub
server=$(realpath "${1:?server}")
program=$(realpath "${2:?program}")
if ! cmp -s "$here/packages.txt" "$environment/made-of.txt"; then
  rm -rf "$environment"
  python3 -m venv "$environment"
  "$environment/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check --no-deps -r "$here/packages.txt"
  cp "$here/packages.txt" "$environment/made-of.txt"
fi
exec "$environment/bin/python" -B "$here/read_server.py" "$server" "$program"
