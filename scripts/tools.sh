# shellcheck shell=bash
# ./dev load, chaos, bench, interop, logs: programs beside the stack, and its logs.
# `cd "$CALLER_DIR"`: file names among the arguments are relative to the caller's folder.

load() {
  local help=0 arg
  (($#)) || help=1
  for arg; do [[ $arg != @(-h|--help|help|--version) ]] || help=1; done
  prepare
  ((help)) || stack_runs || die 1 "the stack does not run. Start it with: ./dev up"
  [[ -x $LOADTEST ]] || { prerequisites >&2; build "$PROFILE" seckill seckill-loadtest; }
  export_settings
  cd "$CALLER_DIR"
  exec "$LOADTEST" "$@"
}

# It runs servers of its own and needs nothing of the stack but the two binaries.
chaos() {
  prerequisites >&2
  build "$PROFILE" seckill seckill-loadtest
  cd "$CALLER_DIR"
  exec "$LOADTEST" chaos --seckill "$SECKILL" "$@"
}

# In a database and on instances of its own, so that the stack's sales are not touched: of the stack it needs only
# MariaDB and Redis, which run on afterwards.
bench() {
  local arg quick=0
  for arg; do
    [[ $arg != --quick ]] || quick=1
    if [[ $arg == @(-h|--help) ]]; then
      [[ -x $BENCH ]] || { prerequisites >&2; build "$BENCH_PROFILE" seckill seckill-bench; }
      exec "$BENCH" run --help
    fi
  done
  prerequisites
  prepare
  lock
  start_databases
  unlock
  say "building (minutes the first time)"
  ((quick)) || build_lean
  build "$BENCH_PROFILE" seckill seckill-bench
  ((quick)) || say "the lean binary has $LEAN_BYTES bytes, the full one $(stat -c %s "$(binary "$BENCH_PROFILE" seckill)")"
  export_settings
  cd "$CALLER_DIR"
  exec env RUST_LOG="${RUST_LOG:-info}" "$BENCH" run --out "$DATA/bench" "$@"
}

# build_lean: the service without the lab, for its size. Before the full build, which has the same path.
build_lean() {
  env -u DATABASE_URL cargo build --profile "$BENCH_PROFILE" --package=seckill --no-default-features 9<&-
  LEAN_BYTES=$(stat -c %s "$(binary "$BENCH_PROFILE" seckill)")
}

# It starts and ends a Redis of its own; the stack is neither needed nor touched.
interop() {
  local tool missing=()
  for tool in java javac mvn; do command -v "$tool" >/dev/null || missing+=("$tool"); done
  ((${#missing[@]} == 0)) || die 2 "interop needs a JDK (11 or newer) and Maven; missing: ${missing[*]}. To install them:" \
    "sudo apt-get install -y --no-install-recommends openjdk-17-jdk-headless maven" \
    "(or default-jdk-headless; elsewhere: https://adoptium.net and https://maven.apache.org)"
  prerequisites
  env -u DATABASE_URL cargo run -q -p seckill-interop -- "$@"
}

logs() {
  local follow=() files=() names=() arg
  prepare
  for arg; do
    if [[ $arg == -f ]]; then follow=(-F); else names+=("$arg"); fi
  done
  if ((${#names[@]} == 0)); then names=("app-$SECKILL_PORT_1" "app-$SECKILL_PORT_2"); fi
  for arg in "${names[@]}"; do
    [[ -f $DATA/log/$arg.log ]] ||
      die 1 "there is no log named '$arg'. There are: $(find "$DATA/log" -name '*.log' -printf '%f ' | sed 's/\.log//g')"
    files+=("$DATA/log/$arg.log")
  done
  exec tail -n 200 "${follow[@]}" -- "${files[@]}"
}
