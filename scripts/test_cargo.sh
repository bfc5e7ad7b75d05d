# shellcheck shell=bash
# ./dev test [PACKAGE] [NAME] [FLAGS], ./dev test slow: `cargo test` for what the arguments need, and its result in one line.

# Flags of `cargo test`: those whose value is the next argument, those that choose packages, those that choose targets.
VALUED_FLAGS='-p|--package|--exclude|--test|--bin|--example|--bench|-F|--features|-j|--jobs|--profile|--target|--target-dir|--manifest-path|--color|--config|--message-format|-Z'
PACKAGE_FLAGS='-p.*|--package(=.*)?|--workspace|--all|--manifest-path(=.*)?'
TARGET_FLAGS='--lib|--bins?|--bin=.*|--tests?|--test=.*|--doc|--examples?|--example=.*|--bench(es)?|--bench=.*|--all-targets'

# Flags of the test binaries, as `known_flags` takes them. With -Z (a nightly toolchain) the flags are not checked.
LIBTEST_FLAGS=(
  --include-ignored --ignored --test --bench --list --logfile= --nocapture --no-capture --test-threads= --skip= -q --quiet
  --exact --color= --format= --show-output -Z=
)

# known_test_flags ARG...: ends the script at a flag behind -- that the test binaries would refuse once they are built.
# cargo refuses its own at once.
known_test_flags() {
  local flags=() next="" arg
  while (($#)) && [[ $1 != -- ]]; do shift; done
  for arg in "${@:2}"; do
    # A word that is neither a flag nor a flag's value is one more filter.
    if [[ $arg == -* || -n $next ]]; then flags+=("$arg"); fi
    [[ " ${LIBTEST_FLAGS[*]} " == *" $arg= "* ]] && next=value || next=""
  done
  [[ " ${flags[*]} " == *" -Z "* ]] || known_flags test "${LIBTEST_FLAGS[@]}" -- "${flags[@]}"
}

test_cargo() {
  local package="" name="" flags=() scope=() next="" threads
  # Most tests wait for a server, a lease or a time-out.
  threads=${RUST_TEST_THREADS:-$((6 * $(nproc)))}
  # Up to --, the first two words that are no flag and no flag's value are PACKAGE and NAME.
  while (($#)) && [[ $1 != -- ]]; do
    if [[ -n $next || $1 == -* ]]; then
      flags+=("$1")
      [[ -z $next && $1 =~ ^($VALUED_FLAGS)$ ]] && next=value || next=""
    elif [[ -z $package$name ]] && package=$(package_name "$1"); then :
    elif [[ -z $name ]]; then name=$1
    else die 2 "'$1' is one name too many; further ones go behind --. See ./dev test --help."; fi
    shift
  done
  # `slow` runs the tests that need real time, one at a time. Without a name, all others run.
  if [[ $name == slow ]]; then
    name=slow:: threads=1
  elif [[ -z $name ]]; then
    set -- -- --skip slow:: "${@:2}"
  fi

  if [[ -z $package ]] && any_matches "$PACKAGE_FLAGS" "${flags[@]}"; then :
  elif [[ -z $name ]] || any_matches "$TARGET_FLAGS" "${flags[@]}"; then scope=("${package:+--package=}${package:---workspace}")
  else mapfile -t scope < <(test_scope "$name" "$package"); fi
  [[ -z $name || ${scope[*]} != --workspace ]] ||
    say "no test in the sources has \"$name\" in its path, but a macro may make one: looking in all packages"
  [[ $PROFILE == dev ]] || scope+=("--profile=$PROFILE")

  enough_space
  say "building and running the tests: ${scope[*]}${flags[*]:+ ${flags[*]}}${name:+ $name}"
  [[ ! -t 1 ]] || export CARGO_TERM_COLOR=always # `tee` hides the terminal from cargo
  export RUST_TEST_THREADS=$threads
  local command=(without_settings cargo test --no-fail-fast "${scope[@]}" "${flags[@]}" ${name:+"$name"})
  if [[ -z $package$name ]] && ! any_matches "$PACKAGE_FLAGS|$TARGET_FLAGS|--no-run" "${flags[@]}"; then
    report_tests "" all_tests "$@"
  else
    report_tests "$name" "${command[@]}" "$@"
  fi
}

# all_tests -- FLAGS...: runs the `command` of test_cargo. The tests in crates/*/tests/on_redis/ mostly wait: they run
# beside the others, and what they print follows.
all_tests() {
  local beside log=$DATA/log/test-on-redis.log status=0
  "${command[@]}" --no-run || return
  (
    trap - INT # which a command behind & would ignore
    "${command[@]}" --test on_redis "$@"
  ) >"$log" 2>&1 &
  beside=$!
  # Any other target that has tests: cargo has no flag that leaves one out, so no other's name may begin with o.
  "${command[@]}" --lib --test '[!o]*' "$@" || status=$?
  "${command[@]}" --doc "$@" || status=$?
  wait "$beside" || status=$?
  cat "$log"
  return "$status"
}

# any_matches PATTERN ARGUMENT...
any_matches() {
  local argument
  for argument in "${@:2}"; do [[ ! $argument =~ ^($1)$ ]] || return 0; done
  return 1
}

# report_tests NAME COMMAND...: runs it and says how many tests passed. A NAME that fits no test is a failure.
report_tests() {
  local name=$1 status=0 counts log=$DATA/log/test.log
  shift
  "$@" 2>&1 | tee "$log" || status=$?
  counts=$(count_tests "$log")
  if ((status == 0)) && [[ $counts == "0 passed, 0 failed,"* ]] && grep -q "^test result:" "$log"; then
    die 1 "no test was run: none fits these arguments${name:+, with \"$name\" in its path}." \
      "(A test may also be ignored, or need a cargo feature: --features NAME.)"
  fi
  if ((status)); then say "tests FAILED (status $status): $counts"; else say "tests passed: $counts"; fi
  return "$status"
}

# count_tests LOG: of all test binaries together.
count_tests() {
  awk '/^test result:/ { passed += $4; failed += $6; ignored += $8 }
    END { printf "%d passed, %d failed, %d ignored", passed, failed, ignored }' "$1"
}
