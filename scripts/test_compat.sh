# shellcheck shell=bash
# ./dev test compat: the tests that depend on what a server does, on each server that users run.

# A product's name alone means the server that is installed on this machine. PRODUCT-SUITE is that of another Debian suite, and
# oceanbase comes from PyPI: both are fetched by scripts/lib/server_roots.sh.
COMPAT_SERVERS=(mariadb mariadb-trixie mysql-sid oceanbase redis redis-trixie valkey-trixie valkey-sid)

# Modules of tests/it. On a database: migrations, every strategy against its guarantees, what each error means, what
# outages and lost replies do, every query of shops, vouchers, orders and the audit, and how the reads of shops are judged.
COMPAT_DATABASE=(
  engine_properties schema schema_deviations law purchase group_commit lifetime late_commit database_errors resilience half_open
  audit admin_writes shops vouchers start unit_rows database_bad_input foreign_keys lookup decided judge::reads
)
# The reads are counted while their table is locked, and there a lock of a table stops no read.
COMPAT_NOT_OCEANBASE=(--skip judge::reads::)
# On a Redis: every script, GEO, Bloom filter, sessions, ids, stream; a cluster, Sentinel, TLS, rights.
COMPAT_REDIS=(
  law purchase sold_out sign_in session_tracking ids shops java_node start
  stream stream_admission stream_faults stream_model stream_outages stream_rebuild
  chaos cluster_style redis_sentinel redis_input
)
# The lock's tests that do not depend on what a server does.
COMPAT_NOT_LOCK=(--skip history:: --skip documentation:: --skip public_api:: --skip readme:: --skip examples::)

compat_usage() {
  cat <<END
usage: ./dev test compat [--write] [NAME...]
       ./dev test compat --path NAME

Runs the tests that depend on what a server does on each of: ${COMPAT_SERVERS[*]}.
A NAME is oceanbase, which comes from PyPI; a product, which is this machine's server; or PRODUCT-SUITE with any
suite of Debian, which is unpacked, not installed. On a database these are modules of tests/it, on a Redis or Valkey others, and the tests
of the packages in crates/redis-link/, lock/ and cache/. A test that fails is named, and its server fails.

  --write      puts the table that it prints at the end into docs/OPERATIONS.md
  --path NAME  only gets that server, and prints the folder of its programs:
               PATH=\$(./dev test compat --path redis-trixie):\$PATH ./dev test lock

  SECKILL_SERVERS        where they are kept, such as a folder that several checkouts share (.dev/servers)
  SECKILL_DEBIAN_MIRROR  where they come from (the mirror that this machine's apt uses)
END
}

test_compat() {
  local arg write="" names=() failed=0
  if [[ ${1:-} == --path ]]; then
    (($# == 2)) || die 2 "--path takes one name."
    prepare
    get_server "$2" >&2
    echo "$(server_root "$2")/bin"
    return
  fi
  for arg; do
    case $arg in
      -h | --help | help) compat_usage; return ;;
      --write) write=1 ;;
      *) names+=("$arg") ;;
    esac
  done
  [[ -z $write || ${#names[@]} == 0 ]] || die 2 "--write is for the whole table: no names with it."
  ((${#names[@]})) || names=("${COMPAT_SERVERS[@]}")
  prerequisites
  prepare
  fake_clocks
  for arg in "${names[@]}"; do [[ -n ${SERVER_PACKAGES[$arg]:-} ]] || get_server "$arg"; done
  printf '| server | from | tests |\n|---|---|---|\n' >"$DATA/log/compat.md"
  for arg in "${names[@]}"; do compat_row "$arg" || failed=1; done
  cat "$DATA/log/compat.md"
  ((!failed)) || die 1 "not all passed: see $DATA/log/compat-*.log"
  [[ -z $write ]] || compat_write docs/OPERATIONS.md
}

# compat_write FILE: puts the table between the file's markers.
compat_write() {
  local file=$1 text
  text=$(<"$DATA/log/compat.md") awk '
    /^<!-- compat:end -->/ { inside = 0 }
    !inside { print }
    /^<!-- compat:begin -->/ { inside = 1; print ENVIRON["text"] }' "$file" >"$DATA/compat.new"
  cat "$DATA/compat.new" >"$file" # not `mv`, which would take the owner and mode of the new file along
}

# compat_row NAME: runs the tests on this server, and adds its line to the table.
compat_row() {
  local name=$1 product=${1%%-*} suite=${1#*-}
  local log=$DATA/log/compat-$1.log
  local version began=$SECONDS counts wrong status=0
  if [[ $product == oceanbase ]]; then
    suite=PyPI
  elif [[ $suite == "$product" ]]; then
    suite=$(sed -n 's/^VERSION_CODENAME=//p' /etc/os-release)
  fi
  # compat_path changes PATH only in this subshell, and in the one below.
  version=$(compat_path "$name" && server_version "$product") || return
  say "the tests on $version"
  (
    compat_path "$name"
    export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
    case $product in
      mariadb | mysql | oceanbase)
        export TEST_DATABASE_PRODUCT=$product
        [[ $product == oceanbase ]] || COMPAT_NOT_OCEANBASE=()
        compat_tests seckill "${COMPAT_DATABASE[@]/%/::}" "${COMPAT_NOT_OCEANBASE[@]}"
        ;;
      *)
        wrong=0
        compat_tests redis-link || wrong=1
        compat_tests redisson-lock "${COMPAT_NOT_LOCK[@]}" --skip slow:: || wrong=1
        # They measure times, or start many servers: one after another, as `./dev test slow` runs them.
        compat_tests redisson-lock slow:: "${COMPAT_NOT_LOCK[@]}" --test-threads=1 || wrong=1
        compat_tests cache-aside || wrong=1
        # The skipped test steps a server's clock by a library, and with it Redis 8 of trixie does not start.
        compat_tests seckill "${COMPAT_REDIS[@]/%/::}" --skip nothing_is_oversold || wrong=1
        exit "$wrong"
        ;;
    esac
  ) >"$log" 2>&1 || status=$?
  counts=$(count_tests "$log")
  note "$counts, in $((SECONDS - began)) s"
  ((!status)) || sed -n 's/^test \(.*\) \.\.\. FAILED$/           FAILED: \1/p' "$log"
  echo "| $version | $suite | ${counts%, 0 ignored} |" >>"$DATA/log/compat.md"
  return "$status"
}

# compat_path NAME: puts the server's programs first in PATH. Those of the machine's own server are in PATH already.
compat_path() { [[ -n ${SERVER_PACKAGES[$1]:-} ]] || PATH=$(server_root "$1")/bin:$PATH; }

# compat_tests PACKAGE FILTER...: runs the tests without the address of a database server, so that they start one.
compat_tests() { without_settings cargo test -p "$1" --test '*' -- "${@:2}"; }
