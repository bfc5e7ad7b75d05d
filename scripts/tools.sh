# shellcheck shell=bash
# ./dev load, chaos, rolling, bench, pgo, interop, logs: programs beside the stack, and its logs.
# `cd "$CALLER_DIR"`: file names among the arguments are relative to the caller's folder.

load() {
  local serverless=0 arg
  [[ $# -gt 0 && $1 != plan ]] || serverless=1
  for arg; do [[ $arg != @(-h|--help|help|--version) ]] || serverless=1; done
  prepare
  ((serverless)) || stack_runs || die 1 "the stack does not run. Start it with: ./dev up"
  [[ -x $LOADTEST ]] || { prerequisites >&2; build_programs; }
  export_settings
  cd "$CALLER_DIR"
  exec "$LOADTEST" "$@"
}

# It runs servers of its own and needs nothing of the stack but the two binaries; and for stepped clocks a library that
# fakes the time. Without it, it runs as well, and says which faults it cannot draw.
chaos() {
  local arg short=0
  for arg; do [[ $arg != @(-h|--help|--list) ]] || short=1; done
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
  all_prerequisites >&2
  build_programs
  cd "$CALLER_DIR"
  exec "$LOADTEST" rolling --seckill "$SECKILL" --deploy "$ROOT/deploy" "$@"
}

# In a database and on instances of its own, so that the stack's sales are not touched: of the stack it needs only
# MariaDB and Redis (servers_of_bench), which run on afterwards.
bench() {
  local arg
  for arg; do [[ $arg != @(-h|--help) ]] || load bench --help; done
  servers_of_bench
  say "building (minutes the first time)"
  build "$BENCH_PROFILE" seckill seckill-loadtest
  export_settings
  cd "$CALLER_DIR"
  exec env RUST_LOG="${RUST_LOG:-info}" "$BENCH" bench --out "$DATA/bench" "$@"
}

servers_of_bench() {
  prerequisites
  prepare
  REDIS_KIND=single DATABASE_KIND=single
  list_servers
  lock
  start_servers
  unlock
}

# pgo: a release of the service that the compiler optimises by what the benchmark's load executes.
pgo() {
  (($# == 0)) || die 2 "pgo takes no arguments."
  servers_of_bench
  local host tool folder=$CARGO_TARGET_DIR/pgo
  host=$(rustc -vV | sed -n 's/^host: //p')
  tool=$(rustc --print sysroot)/lib/rustlib/$host/bin/llvm-profdata
  [[ -x $tool ]] || rustup component add llvm-tools ||
    die 2 "the tools of the compiler's LLVM are missing. With rustup: rustup component add llvm-tools"
  rm -rf "$folder/counts"
  build_for_pgo() {
    # For a named target, so that the flags are not for what runs during the build.
    RUSTFLAGS="${RUSTFLAGS:-} $1" build "$BENCH_PROFILE" seckill --target="$host" --target-dir="$folder"
    cp "$folder/$host/$BENCH_PROFILE/seckill" "$folder/seckill"
  }
  say "1 of 4: building the service with counters (minutes)"
  build_for_pgo "-Cprofile-generate=$folder/counts"
  say "2 of 4: building the benchmark"
  build "$BENCH_PROFILE" seckill-bench
  say "3 of 4: running it; its figures are of the service with counters"
  export_settings
  "$BENCH" run --quick --only P1,P2,1,12,13 --out "$DATA/pgo" --seckill "$folder/seckill"
  "$tool" merge -o "$folder/counts.profdata" "$folder/counts"
  say "4 of 4: building the service by these counts (minutes)"
  build_for_pgo "-Cprofile-use=$folder/counts.profdata"
  say "it is $folder/seckill; what it gains: ./dev bench --seckill $folder/seckill, beside ./dev bench"
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
  if ((${#names[@]} == 0)); then names=("${APPS[@]}"); fi
  for arg in "${names[@]}"; do
    [[ -f $DATA/log/$arg.log ]] ||
      die 1 "there is no log named '$arg'. There are: $(find "$DATA/log" -name '*.log' -printf '%f ' | sed 's/\.log//g')"
    files+=("$DATA/log/$arg.log")
  done
  exec tail -n 200 "${follow[@]}" -- "${files[@]}"
}
