# shellcheck shell=bash
# Redis, in its three kinds: one server; a master with two replicas, watched by three Sentinels; a cluster of three
# masters with a replica each. Each kind keeps its data in a folder of its own.

MASTER_NAME=seckill # by which Sentinel knows the master
REDIS_FOLDERS=(redis redis-sentinel redis-cluster)

start_redis() { "start_redis_$REDIS_KIND"; }

# redis_at NAME COMMAND...: asks this server.
redis_at() { redis-cli -h 127.0.0.1 -p "${PORT_OF[$1]}" "${@:2}"; }

redis_answers() { [[ $(redis_at "$1" ping) == PONG ]]; }

# redis_tells NAME SECTION LINE...: does INFO SECTION have all of these lines?
redis_tells() {
  local text line
  text=$(redis_at "$1" info "$2" | tr -d '\r') || return
  for line in "${@:3}"; do grep -qxE "$line" <<<"$text" || return; done
}

# run_redis NAME FOLDER [CONFIGURATION] OPTION...: with `everysec`, killing Redis loses nothing, and a power failure at most a
# second. That is enough here, as Redis only admits, locks and caches; `always` would put a disk write before every lock.
run_redis() {
  local name=$1 folder=$2 configuration=()
  shift 2
  [[ ${1:-} != /* ]] || { configuration=("$1"); shift; }
  mkdir -p "$folder"
  ensure_running "$name" "" \
    redis-server "${configuration[@]}" --bind 127.0.0.1 --port "${PORT_OF[$name]}" --dir "$folder" \
    --appendonly yes --appendfsync everysec --save "" --daemonize no "$@"
}

start_redis_single() {
  run_redis redis "$DATA/redis"
  wait_until_ready redis 60 redis_answers redis
}

# made FOLDER: was it made for the present ports? They are part of what the servers keep there.
made() { [[ -f $1/ports && $(<"$1/ports") == "$SECKILL_REDIS_PORT" ]]; }

# The Redis servers and the Sentinels write who is master into their own configuration files, so that it is known after a
# `down` too.
start_redis_sentinel() {
  local folder=$DATA/redis-sentinel name
  if ! made "$folder"; then
    rm -rf "$folder"
    mkdir -p "$folder/"{redis,sentinel}-{1..3}
    touch "$folder/redis-1/redis.conf"
    for name in redis-{2,3}; do echo "replicaof 127.0.0.1 ${PORT_OF[redis-1]}" >"$folder/$name/redis.conf"; done
    for name in sentinel-{1..3}; do
      cat >"$folder/$name/sentinel.conf" <<END
sentinel monitor $MASTER_NAME 127.0.0.1 ${PORT_OF[redis-1]} 2
sentinel down-after-milliseconds $MASTER_NAME 2000
sentinel failover-timeout $MASTER_NAME 10000
END
    done
    echo "$SECKILL_REDIS_PORT" >"$folder/ports"
  fi
  for name in redis-{1..3}; do
    # A master that has lost both replicas takes no writes: a failover would lose what it admitted then.
    run_redis "$name" "$folder/$name" "$folder/$name/redis.conf" --min-replicas-to-write 1 --min-replicas-max-lag 10
    wait_until_ready "$name" 60 redis_answers "$name"
  done
  for name in sentinel-{1..3}; do
    ensure_running "$name" "" redis-server "$folder/$name/sentinel.conf" --sentinel \
      --bind 127.0.0.1 --port "${PORT_OF[$name]}" --dir "$folder/$name" --daemonize no
  done
  for name in sentinel-{1..3}; do
    wait_until_ready "$name" 60 redis_tells "$name" sentinel \
      "master0:name=$MASTER_NAME,status=ok,.*,slaves=2,sentinels=3"
  done
  for name in redis-{1..3}; do
    wait_until_ready "$name" 60 redis_in_sync "$name" 2
  done
}

# redis_in_sync NAME REPLICAS: a replica that has its master's data, or a master with so many of them.
redis_in_sync() {
  redis_tells "$1" replication role:slave master_link_status:up ||
    redis_tells "$1" replication role:master "connected_slaves:$2"
}

start_redis_cluster() {
  local folder=$DATA/redis-cluster name nodes=(cluster-{1..6}) new=""
  if ! made "$folder"; then
    # Nodes of an attempt that was broken off know each other already.
    for name in "${nodes[@]}"; do stop_server "$name"; done
    rm -rf "$folder"
    new=1
  fi
  # Without full coverage the other masters go on while one is replaced.
  for name in "${nodes[@]}"; do
    run_redis "$name" "$folder/$name" --cluster-enabled yes --cluster-config-file nodes.conf \
      --cluster-port "${PORT_OF[bus-${name#*-}]}" --cluster-node-timeout 5000 --cluster-require-full-coverage no
  done
  for name in "${nodes[@]}"; do wait_until_ready "$name" 60 redis_answers "$name"; done
  if [[ -n $new ]]; then
    say "forming the cluster: 3 masters, 3 replicas"
    # shellcheck disable=SC2046 # the addresses are words
    redis-cli --cluster create $(addresses "" "${nodes[@]}" | tr , ' ') --cluster-replicas 1 --cluster-yes \
      >"$DATA/log/cluster-create.log" 2>&1 ||
      die 1 "redis-cli --cluster create failed:" "$(tail -n 8 "$DATA/log/cluster-create.log")"
    echo "$SECKILL_REDIS_PORT" >"$folder/ports"
  fi
  for name in "${nodes[@]}"; do wait_until_ready "$name" 60 cluster_node_ready "$name"; done
}

cluster_node_ready() {
  local text line
  text=$(redis_at "$1" cluster info | tr -d '\r')
  for line in cluster_state:ok cluster_slots_ok:16384 cluster_known_nodes:6 cluster_size:3; do
    grep -qx "$line" <<<"$text" || return
  done
  redis_in_sync "$1" 1
}

# redis_client: how a person reaches the keys of this stack by redis-cli.
# shellcheck disable=SC2016 # for the reader's shell
redis_client() {
  case $REDIS_KIND in
    single) echo 'redis-cli -u "$REDIS_URL"' ;;
    sentinel) echo "redis-cli -p \$(redis-cli -p ${PORT_OF[sentinel-1]} sentinel get-master-addr-by-name $MASTER_NAME | tail -n 1)" ;;
    cluster) echo "redis-cli -c -p ${PORT_OF[cluster-1]}" ;;
  esac
}
