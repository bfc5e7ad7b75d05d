# shellcheck shell=bash
# Messages: progress with the seconds since the start, notes below it, and errors that end the script.

say() { printf '==> [%3ds] %s\n' "$SECONDS" "$*"; }
note() { printf '           %s\n' "$*"; }

# die STATUS LINE...: status 2 means that the caller has something to put right first.
die() {
  printf '\n./dev: %s\n' "$2" >&2
  (($# < 3)) || printf '       %s\n' "${@:3}" >&2
  exit "$1"
}
