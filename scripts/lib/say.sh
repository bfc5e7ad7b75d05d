# shellcheck shell=bash
# Messages: progress with the seconds since the start, notes below it, and errors that end the script.

say() { printf '==> [%3ds] %s\n' "$SECONDS" "$*"; }
note() { printf '           %s\n' "$*"; }

# known_flags COMMAND FLAG... -- ARG...: ends the script at an argument that is none of the flags, before anything is built
# for it. A FLAG with = takes a value.
known_flags() {
  local command=$1 known=" -h --help "
  shift
  while [[ $1 != -- ]]; do
    known+="$1 "
    shift
  done
  shift
  while (($#)); do
    if [[ $known == *" ${1%%=*}= "* ]]; then
      if [[ $1 != *=* ]]; then
        (($# > 1)) || die 2 "$1 needs a value; see ./dev $command --help."
        shift
      fi
    elif [[ $known != *" $1 "* ]]; then
      die 2 "./dev $command does not take '$1'. It takes:${known//= / VALUE }" "See ./dev $command --help."
    fi
    shift
  done
}

# die STATUS LINE...: status 2 means that the caller has something to put right first.
die() {
  printf '\n./dev: %s\n' "$2" >&2
  (($# < 3)) || printf '       %s\n' "${@:3}" >&2
  exit "$1"
}
