#!/usr/bin/env bash
# Sources the completion of a shell in that shell and asks it to complete. Argument: bash, zsh or fish. Ends with 77 where
# the shell is not installed.
set -euo pipefail
cd "$(dirname "$0")/.."
shell=$1
command -v "$shell" >/dev/null || exit 77
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/bin"
ln -s "$(realpath "$TWOFOUR")" "$work/bin/twofour"
export PATH=$work/bin:$PATH
twofour completion "$shell" >"$work/_twofour"
cd "$work"
touch weights.safetensors 'with blank.safetensors'

# What the shell offers for a line, a word each. The shells' own variables are in single quotes.
# shellcheck disable=SC2016
offers() {
  case $shell in
    bash)
      bash -c 'source ./_twofour; COMP_LINE=$1 COMP_POINT=${#1}; _twofour; printf "%s\n" "${COMPREPLY[@]}"' _ "$1"
      ;;
    fish)
      fish -c 'source ./_twofour; complete -C "$argv[1]"' "$1" | cut -f1
      ;;
    zsh)
      rm -f hits
      zsh -f -c '
        zmodload zsh/zpty
        zpty shell zsh -f -i
        zpty -w shell "PS1=; cd $PWD; fpath=($PWD \$fpath); autoload -Uz compinit; compinit -u -D"
        # Keeps what compadd is given, but for calls that only sort matches into arrays.
        zpty -w shell "compadd() { [[ \$* == *-(O|A|D)\ * ]] || { builtin compadd -O hits \"\$@\"; print -rl -- \$hits >>hits }; builtin compadd \"\$@\" }"
        zpty -w shell "_comp_done() { touch \$PWD/ended }; comppostfuncs=(_comp_done)"
        zpty -w -n shell "$1"$'"'\\t'"'
        for i in {1..100}; do [[ -e ended ]] && break; sleep 0.05; done
        zpty -d shell' _ "$1" >/dev/null 2>&1
      rm -f ended
      if [ -e hits ]; then cat hits; fi
      ;;
  esac
}

# The line, then words that must be offered, those with - in front that must not.
expect() {
  local line=$1 got word
  shift
  got=$(offers "$line")
  for word in "$@"; do
    local want=yes found=yes
    case $word in not:*) want=no word=${word#not:} ;; esac
    grep -qxF -e "$word" -e "$word=" <<<"$got" || found=no
    if [ $found != $want ]; then
      printf '%s: "%s": expected %s: %s, found:\n%s\n' "$shell" "$line" "$word" $want "$got"
      exit 1
    fi
  done
}

expect 'twofour ' convert lint validate completion not:v7 not:--json
expect 'twofour val' validate not:convert
expect 'twofour convert a b --to ' v7 v7-packed g8 bf16 not:convert
expect 'twofour convert a b --to g' g8 not:v7
expect 'twofour prune a b --pattern ' 2:4 4:8-paired
expect 'twofour lint --head' --headers-only not:--html
expect 'twofour lint w' weights.safetensors
expect 'twofour lint --html w' weights.safetensors
expect 'twofour synth a --lay' --layers
expect 'twofour run a --ra' --random not:--input
expect 'twofour run ' not:convert
expect 'twofour completion ' bash zsh fish not:convert
expect 'twofour convert --json --dialect comp' compressed-tensors
expect 'twofour lint --explain unequal' unequal-global-scales not:padding
expect 'twofour lint --explain al' all
expect 'twofour lint a --ignore no-tok' no-tokenizer not:padding
expect 'twofour lint a --select no-tok' no-tokenizer
expect 'twofour lint a --rule no-tok' no-tokenizer=off no-tokenizer=error not:padding=off
expect 'twofour repair a b --only unequal' unequal-global-scales not:no-license
if [ "$shell" = bash ]; then
  expect 'twofour lint a --rule no-tokenizer=o' off not:error
  expect 'twofour lint a --ignore padding,no-tok' padding,no-tokenizer not:no-tokenizer
  expect 'twofour convert a b --to=v7' v7 v7-packed
  expect 'twofour prune a b --pattern 2:' 4
  expect 'twofour lint with' 'with blank.safetensors'
  # A file may be called like a command.
  expect 'twofour convert convert --t' --to
fi
echo "$shell completes"
