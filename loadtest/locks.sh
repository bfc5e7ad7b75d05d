#!/usr/bin/env bash
# Benchmark of the Redis lock beside the rslock crate, in interleaved rounds (see docs/BENCHMARKS.md):
#   pairs     lock + unlock without contention ÷ the same two scripts sent by redis-benchmark
#   hand-over from the release in one process to the end of the acquire in another ÷ a PING
#   tries     acquire commands per hand-over among 100 waiters of one process
#   commands  commands per uncontended lock + unlock
# Starts a redis-server of its own on a free port.
# usage: loadtest/locks.sh [ROUNDS=5]
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5}
for tool in redis-server redis-cli redis-benchmark; do
  command -v "$tool" >/dev/null || { echo "$tool is missing: apt-get install redis-server redis-tools" >&2; exit 2; }
done
cargo build -q --release -p seckill-loadtest --features lock-bench --example lock_bench
bench=${CARGO_TARGET_DIR:-target}/release/examples/lock_bench

work=$(mktemp -d)
trap 'kill "${server:-}" 2>/dev/null || true; wait; rm -rf "$work"' EXIT
for port in $(shuf -i 20000-29999 -n 20); do
  redis-server --bind 127.0.0.1 --port "$port" --save "" --appendonly no --dir "$work" \
    --logfile redis.log &
  server=$!
  until redis-cli -p "$port" ping >/dev/null 2>&1; do
    kill -0 "$server" 2>/dev/null || continue 2 # the port is taken
    sleep 0.1
  done
  kill -0 "$server" 2>/dev/null && break # else another server answered
done
url=redis://127.0.0.1:$port/
redis() { redis-cli -p "$port" "$@"; }

# The two commands as the lock sends them, recorded by MONITOR, with redis-benchmark's placeholder as the lock's name.
: >"$work/monitor"
redis-cli -p "$port" MONITOR >"$work/monitor" &
monitor=$!
until grep -q OK "$work/monitor"; do sleep 0.1; done
"$bench" "$url" ours commands 1 >/dev/null
until (($(grep -ci '] "evalsha"' "$work/monitor") >= 4)); do sleep 0.1; done
kill "$monitor"
# sent N: the Nth last command, an argument per line.
sent() {
  grep -i '] "evalsha"' "$work/monitor" | tail -n "$1" | head -n 1 |
    sed 's/^[^]]*] //; s/lock:order:1/lock:__rand_int__/g' | xargs printf '%s\n'
}
mapfile -t acquire < <(sent 2)
mapfile -t release < <(sent 1)
owner=$(printf '%s\n' "${acquire[@]}" | grep -E '^[0-9a-f-]{36}:[0-9]+$')

# raw CLIENTS REQUESTS [OPTION...]: pairs a second of the bare scripts. Every acquire finds a free lock, and every
# release a held one: keys are drawn from ten times as many as there are requests, so that only one request in twenty
# draws a key again.
raw() {
  local clients=$1 requests=$2 keys=$(($2 * 10)) a r
  shift 2
  redis FLUSHALL >/dev/null
  a=$(benchmark "$@" "${acquire[@]}")
  redis FLUSHALL >/dev/null
  redis EVAL "for i = 0, ARGV[1] - 1 do
    redis.call('HSET', string.format('lock:%012d', i), ARGV[2], 1)
  end" 0 "$keys" "$owner" >/dev/null
  r=$(benchmark "$@" "${release[@]}")
  redis FLUSHALL >/dev/null
  awk -v a="$a" -v r="$r" 'BEGIN { print 1 / (1 / a + 1 / r) }'
}
benchmark() {
  redis-benchmark -p "$port" -c "$clients" -n "$requests" -r "$keys" --csv "$@" |
    awk -F'"' 'END { print $4 }'
}

# record NAME VALUE: adds a sample of a figure.
record() { echo "$2" >>"$work/sample.$1"; }
# measure LIBRARY MEASUREMENT NUMBER: records each figure as LIBRARY.figure.
measure() {
  "$bench" "$url" "$1" "$2" "$3" >"$work/out"
  while read -r name value; do record "$1.$name${4:-}" "$value"; done <"$work/out"
}
last() { tail -n 1 "$work/sample.$1"; }
ratio() { record "$1" "$(awk -v a="$2" -v b="$3" 'BEGIN { print a / b }')"; }

for ((round = 1; round <= rounds; round++)); do
  record raw.pipelined "$(raw 1 100000 -P 64)"
  for clients in 1 64; do
    record "raw.$clients" "$(raw "$clients" $((clients == 1 ? 15000 : 60000)))"
    for library in ours rslock; do
      measure "$library" pairs "$clients" ".$clients"
      ratio "$library.ratio.$clients" "$(last "$library.pairs.$clients")" "$(last "raw.$clients")"
    done
  done
  for library in ours rslock; do
    ratio "$library.ratio.pipelined" "$(last "$library.pairs.64")" "$(last raw.pipelined)"
    measure "$library" handover $((${#library} == 4 ? 300 : 60))
    ratio "$library.p50" "$(last "$library.handover_p50_us")" "$(last "$library.ping_p50_us")"
    ratio "$library.p99" "$(last "$library.handover_p99_us")" "$(last "$library.ping_p50_us")"
    measure "$library" contention 100
    measure "$library" commands 1000
  done
  echo "round $round of $rounds done" >&2
done

# show NAME FORMAT: the median, and the range in brackets.
show() {
  sort -n "$work/sample.$1" | awk -v f="$2" '{ v[NR] = $1 } END {
    printf f " (" f "–" f ")", v[int((NR + 1) / 2)], v[1], v[NR] }'
}
row() { printf '| %s | %s | %s |\n' "$1" "$(show "ours.$2" "$3")" "$(show "rslock.$2" "$3")"; }
echo "Medians of $rounds rounds, ranges in brackets."
echo
echo '| | ours | rslock |'
echo '|---|---|---|'
row 'lock + unlock ÷ the bare scripts, 64 at once' ratio.64 '%.2f'
row 'the same ÷ the bare scripts, 64 pipelined on one connection' ratio.pipelined '%.2f'
row 'lock + unlock ÷ the bare scripts, one at a time' ratio.1 '%.2f'
row 'hand-over between two processes, median, in PINGs' p50 '%.1f'
row 'hand-over between two processes, p99, in median PINGs' p99 '%.1f'
row 'acquire commands per hand-over, 100 waiters in one process' tries_per_handover '%.2f'
row '100 waiters served, each holding for 1 ms, in ms' contention_ms '%.0f'
row 'commands per uncontended lock + unlock' commands_per_pair '%.2f'
echo
echo "Footnote: bare scripts $(show raw.64 %.0f) pairs/s at 64, $(show raw.pipelined %.0f) pipelined,"
echo "$(show raw.1 %.0f) at 1;"
echo "ours $(show ours.pairs.64 %.0f) and $(show ours.pairs.1 %.0f); PING $(show ours.ping_p50_us %.0f) µs,"
echo "hand-over $(show ours.handover_p50_us %.0f) µs. $(nproc) cores, $(redis-server --version | awk '{ print $3 }'), commit $(git rev-parse --short HEAD 2>/dev/null)."
