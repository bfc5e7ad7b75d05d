# shellcheck shell=bash
# ./dev load, judge, chaos, bench, logs: programs beside the stack, and its logs.
# `cd "$CALLER_DIR"`: file names among the arguments are relative to the caller's folder.

load() {
  local serverless=0 arg
  [[ $# -gt 0 && $1 != @(plan|completions) ]] || serverless=1
  for arg; do [[ $arg != @(-h|--help|help|--version) ]] || serverless=1; done
  prepare
  ((serverless)) || stack_runs || die 1 "the stack does not run. Start it with: ./dev up"
  [[ -x $LOADTEST ]] || { prerequisites >&2; build_programs; }
  export_settings
  cd "$CALLER_DIR"
  exec "$LOADTEST" "$@"
}

# judge needs no server of this checkout, and installs none.
judge() {
  prepare
  [[ -x $LOADTEST ]] || say "building (minutes the first time)" >&2
  build_programs
  cd "$CALLER_DIR"
  exec "$LOADTEST" judge "$@"
}

# The flags of bench, chaos and chaos rolling, for `known_flags`; loadtest/tests/command_line.rs compares them with the
# program's.
BENCH_FLAGS=(--quick --scale --durable --write --only= --out= --seckill=)
CHAOS_FLAGS=(--rounds= --at-once= --redis= --database= --seed= --only-round= --buyers= --recoveries= --seckill= --list --json=)
ROLLING_FLAGS=(--instances= --rounds= --rate= --buyers= --seckill= --json=)

# Chaos runs servers of its own. It needs the two binaries, and libfaketime to step clocks. Without libfaketime it runs as
# well, and says which faults it cannot draw.
chaos() {
  local arg short=0
  [[ ${1:-} != rolling ]] || { rolling "${@:2}"; return; }
  for arg; do [[ $arg != @(-h|--help|--list) ]] || short=1; done
  known_flags chaos "${CHAOS_FLAGS[@]}" -- "$@"
  if [[ " $* " == *"--database"[\ =]"oceanbase "* ]]; then
    prepare
    get_server oceanbase >&2
    PATH=$(server_root oceanbase)/bin:$PATH
    export TEST_DATABASE_PRODUCT=oceanbase
    set -- "${@/oceanbase/single}"
  fi
  if [[ " $* " == *@(replicated|asynchronous)* ]]; then all_prerequisites >&2; else prerequisites >&2; fi
  if ((!short)); then
    command -v faketime >/dev/null || (install_packages faketime) >&2 ||
      note "without libfaketime no clock is stepped" >&2
  fi
  build_programs
  cd "$CALLER_DIR"
  exec "$LOADTEST" chaos --seckill "$SECKILL" "$@"
}

# As chaos, it runs servers of its own.
rolling() {
  known_flags "chaos rolling" "${ROLLING_FLAGS[@]}" -- "$@"
  all_prerequisites >&2
  build_programs
  cd "$CALLER_DIR"
  exec "$LOADTEST" rolling --seckill "$SECKILL" "$@"
}

# As chaos, it runs servers of its own. Their data is beside that of `up`: in /tmp, which may be memory, a commit would
# cost nothing.
bench() {
  local arg
  for arg; do [[ $arg != @(-h|--help) ]] || load bench --help; done
  known_flags bench "${BENCH_FLAGS[@]}" -- "$@"
  prerequisites
  prepare
  mkdir -p "$DATA/bench"
  say "building (minutes the first time)"
  build "$BENCH_PROFILE" seckill seckill-loadtest
  cd "$CALLER_DIR"
  exec env TMPDIR="$DATA/bench" RUST_LOG="${RUST_LOG:-info}" "$BENCH" bench --out "$DATA/bench" "$@"
}

logs() {
  local follow=() files=() names=() arg
  prepare
  for arg; do
    if [[ $arg == -f ]]; then follow=(-F); else names+=("$arg"); fi
  done
  if ((${#names[@]} == 0)); then names=("${APPS[@]}"); fi
  for arg in "${names[@]}"; do
    [[ -f $DATA/log/$arg.log ]] ||
      die 1 "there is no log named '$arg'. There are: $(find "$DATA/log" -name '*.log' -printf '%f ' | sed 's/\.log//g')"
    files+=("$DATA/log/$arg.log")
  done
  exec tail -n 200 "${follow[@]}" -- "${files[@]}"
}
