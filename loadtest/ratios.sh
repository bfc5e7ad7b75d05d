#!/usr/bin/env bash
# Benchmark of shop reads, as ratios measured in interleaved rounds (see docs/BENCHMARKS.md):
#   memory  a hit in the process's memory ÷ a bare axum route that sends the same bytes
#   redis   a hit in Redis ÷ raw GETs of the same key by redis-benchmark, same number of clients
# Needs the running stack (./dev up), wrk and redis-benchmark. A third instance serves the reads, without the limit on
# reads of a single shop, as only one shop is read here.
# usage: loadtest/ratios.sh [ROUNDS=5] [SECONDS_EACH=4] [CLIENTS=64]
set -euo pipefail
cd "$(dirname "$0")/.."
rounds=${1:-5} seconds=${2:-4} clients=${3:-64}
for tool in wrk redis-benchmark curl; do
  command -v "$tool" >/dev/null ||
    { echo "$tool is missing: apt-get install wrk redis-tools curl" >&2; exit 2; }
done
eval "$(./dev env)"
service=http://127.0.0.1:${SERVICE_PORT:-8089} bare=127.0.0.1:${BARE_PORT:-8090}
curl -sf "$TARGETS/health/ready" >/dev/null || { echo "the stack is not ready: ./dev up" >&2; exit 2; }

env -u DATABASE_URL cargo build -q --release -p seckill-loadtest --example bare_route
release=${CARGO_TARGET_DIR:-target}/release work=$(mktemp -d) pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; wait; rm -rf "$work"' EXIT

# wait_until_ready URL PID LOG: until it replies; ends the script if its process has ended.
wait_until_ready() {
  until curl -sf "$1" >"$work/body"; do
    kill -0 "$2" || { cat "$3" >&2; exit 2; }
    sleep 0.1
  done
}
"$release/seckill" serve --lab --bind "${service#http://}" --per-shop-per-second 0 \
  >"$work/service.log" 2>&1 &
pids+=($!)
wait_until_ready "$service/health/ready" $! "$work/service.log"
wait_until_ready "$service/shop/1" $! "$work/service.log"
cp "$work/body" "$work/shop"
"$release/examples/bare_route" "$bare" "$work/shop" >"$work/bare.log" 2>&1 &
pids+=($!)
wait_until_ready "http://$bare/" $! "$work/bare.log"

# per_second URL [HEADER]: replies a second; fails on any other than 2xx.
per_second() {
  wrk -t1 -c"$clients" -d"${seconds}s" ${2:+-H "$2"} "$1" >"$work/wrk"
  if grep -q 'Non-2xx\|Socket errors' "$work/wrk"; then cat "$work/wrk" >&2; exit 1; fi
  awk '/Requests\/sec/ {print $2}' "$work/wrk"
}
raw_gets() {
  redis-benchmark -u "$REDIS_URL" -c "$clients" -n $((seconds * 40000)) --csv GET cache:shop:1 |
    awk -F'"' 'END {print $4}'
}

for ((round = 1; round <= rounds; round++)); do
  route=$(per_second "http://$bare/")
  memory=$(per_second "$service/shop/1")
  redis=$(per_second "$service/shop/1" 'x-lab-cache: mutex')
  raw=$(raw_gets)
  awk -v r="$round" -v a="$route" -v b="$memory" -v c="$redis" -v d="$raw" 'BEGIN {
    printf "round %d: bare route %d/s, memory hit %d/s, redis hit %d/s, raw GET %d/s\n", r, a, b, c, d }'
  awk -v a="$route" -v b="$memory" 'BEGIN {print b / a}' >>"$work/memory"
  awk -v a="$raw" -v b="$redis" 'BEGIN {print b / a}' >>"$work/redis"
done
for ratio in memory redis; do
  sort -n "$work/$ratio" | awk -v name="$ratio" '{v[NR] = $1} END {
    printf "%-7s median %.2f, range %.2f to %.2f\n", name, v[int((NR + 1) / 2)], v[1], v[NR] }'
done
