# shellcheck shell=bash
# ./dev test stack: the servers of ./dev up in all their kinds, on ports and data of their own.

# own_stack NAME: a stack for a test, with ports and data of its own, which is ended and removed with the script.
own_stack() {
  local number
  DATA=$DATA/$1
  rm -rf "$DATA"
  SECKILL_REDIS_PORT=$(free_ports 33)
  SECKILL_MYSQL_PORT=$((SECKILL_REDIS_PORT + 19)) SECKILL_HTTP_PORT=$((SECKILL_REDIS_PORT + 23))
  for number in {1..8}; do printf -v "SECKILL_PORT_$number" %s $((SECKILL_HTTP_PORT + number)); done
  SECKILL_LAB_PORT=$((SECKILL_HTTP_PORT + 9))
  trap 'down --wipe >/dev/null' EXIT
  mkdir -p "$DATA"
}

test_stack() {
  own_stack test-stack
  test_arguments
  test_lock
  stack_of sentinel replicated 4
  must "an up that fails names what runs" says "mariadb-1 .*redis-1 .*./dev down" name_what_runs
  test_nginx 4
  test_sentinel
  test_replicated
  stack_of cluster replicated 1
  test_nginx 1
  must "the replicated database keeps its rows" same 3 through_haproxy 'SELECT COUNT(*) FROM kept'
  test_cluster
  stack_of cluster single 2
  must "Redis begins empty beside another database" same "" redis-cli -c -p "${PORT_OF[cluster-2]}" get kept
  must "each kind of database has its own data" same 0 in_mariadb mariadb "SHOW TABLES LIKE 'kept'" count
  must "what is not needed has ended" same "$(printf %s, cluster-{1..6})mariadb" names_recorded
  down --wipe
  trap - EXIT
  must "nothing is left" test ! -e "$DATA"
  say "the stack's tests passed"
}

# stack_of REDIS DATABASE INSTANCES: what `up` does before it builds.
stack_of() {
  say "--redis $1 --database $2 --instances $3"
  REDIS_KIND=$1 DATABASE_KIND=$2 INSTANCES=$3
  take_stack
  switch_stack
  claim_ports
  start_servers
  unlock
}

# restart: with the data, as `down` and `up`.
restart() {
  down
  stack_of "$REDIS_KIND" "$DATABASE_KIND" "$INSTANCES"
}

# must WHAT COMMAND...
must() {
  "${@:2}" || die 1 "FAILED: $1"
  note "ok: $1"
}

# same WANTED COMMAND...: does it print this?
same() {
  local found
  found=$("${@:2}")
  [[ $found == "$1" ]] || { note "expected '$1', found '$found'"; return 1; }
}

# says PATTERN COMMAND...: does it print this? It runs in a subshell, and its status does not matter.
says() {
  local found
  found=$( ("${@:2}") 2>&1) || true
  grep -qE -- "$1" <<<"$found" || { note "expected '$1', found '$found'"; return 1; }
}

# Before anything is built.
test_arguments() {
  say "arguments, and room on the disk"
  must "a wrong flag of bench is named" says "does not take '--quik'" bench --quik
  must "a missing value, too" says "--only needs a value" bench --quick --only
  must "a wrong flag of demo" says "does not take '--buyers'" demo --redis single --buyers 9
  must "of chaos" says "does not take 'roling'" chaos roling
  must "of chaos rolling" says "does not take '--round=3'" chaos rolling --round=3
  must "of the tests" says "does not take '--nocaptur'" run_tests lock fair -- --nocaptur
  must "of test api" says "does not take '--exmaples'" run_tests api --exmaples 3
  must "right ones are none" same "" known_test_flags lock --locked -- --skip slow:: --exact name --test-threads=1
  must "too little room is told with the figure" says "has [0-9]+ MB free; about 9999999 MB" without_room
}
without_room() {
  FIRST_BUILD=9999999 LATER_BUILD=9999999
  enough_space
}

# A ./dev that has waited for another one takes the stack that the other chose.
test_lock() {
  local waiting=$DATA/waiting chosen=$DATA/chosen
  lock
  (
    exec 9<&-
    LOCKED="" REDIS_KIND="" DATABASE_KIND="" INSTANCES=""
    take_stack >"$waiting"
    echo "$REDIS_KIND $DATABASE_KIND $INSTANCES" >"$chosen"
  ) &
  until grep -qs waiting "$waiting"; do sleep 0.05; done
  REDIS_KIND=cluster DATABASE_KIND=replicated INSTANCES=5 remember_stack
  unlock
  wait $!
  must "who waits for another ./dev takes the stack that it chose" same "cluster replicated 5" cat "$chosen"
  rm "$DATA/stack"
}

kill_server() {
  running "$1"
  kill -KILL "$RUNNING_PID"
  wait "$RUNNING_PID" 2>/dev/null || true # or bash reports its end
}

names_recorded() { recorded '*' | paste -sd ,; }

test_nginx() {
  local address
  nginx_configuration
  must "nginx accepts its configuration for $1" nginx -p "$DATA/nginx/" -c nginx.conf -e stderr -tq
  for address in "${APPS[@]}"; do
    must "$address is in it" grep -q "server 127.0.0.1:${PORT_OF[$address]} " "$DATA/nginx/nginx.conf"
  done
  must "and no other" same "$1" grep -c '^ *server 127.0.0.1:[^ ]* ' "$DATA/nginx/nginx.conf"
}

sentinel_master() { redis_at sentinel-1 sentinel get-master-addr-by-name "$MASTER_NAME" | tail -n 1; }
master_moved() { [[ $(sentinel_master) != "${PORT_OF[redis-1]}" ]]; }
at_master() { redis-cli -h 127.0.0.1 -p "$(sentinel_master)" "$@"; }

test_sentinel() {
  local master
  at_master set kept 1 >/dev/null
  redis_at redis-1 wait 2 10000 >/dev/null
  kill_server redis-1
  wait_until_ready sentinel-1 60 master_moved
  must "a replica has what its master had" same 1 at_master get kept
  master=$(sentinel_master)
  start_redis
  must "a killed master comes back as a replica" redis_tells redis-1 replication role:slave
  restart
  must "who is master survives down and up" same "$master" sentinel_master
  must "so does the data" same 1 at_master get kept
}

test_cluster() {
  redis-cli -c -p "${PORT_OF[cluster-1]}" set kept 1 >/dev/null
  must "its three masters have a replica each" same 3 count_replicas
  restart
  must "a cluster keeps its data" same 1 redis-cli -c -p "${PORT_OF[cluster-2]}" get kept
}

count_replicas() { redis_at cluster-1 cluster nodes | grep -c slave; }

# in_mariadb NAME SQL [count]
in_mariadb() {
  MYSQL_PWD=$(secret mysql) mariadb --no-defaults -N -h 127.0.0.1 -P "${PORT_OF[$1]}" -u seckill seckill -e "$2" |
    if [[ ${3:-} == count ]]; then wc -l; else cat; fi
}
through_haproxy() { in_mariadb haproxy "$1" 2>&1; }
is_primary() { [[ $(in_mariadb haproxy 'SELECT @@server_id') == "$1" ]]; }
has_rows() { [[ $(in_mariadb "$1" 'SELECT COUNT(*) FROM kept') == "$2" ]]; }

test_replicated() {
  through_haproxy 'CREATE TABLE kept (id INT PRIMARY KEY); INSERT INTO kept VALUES (1)'
  promote
  wait_until_ready haproxy 30 is_primary 2
  must "after a planned switch the other takes writes" through_haproxy 'INSERT INTO kept VALUES (2)'
  kill_server mariadb-2
  promote
  wait_until_ready haproxy 30 is_primary 1
  must "after a failover the replica takes writes" through_haproxy 'INSERT INTO kept VALUES (3)'
  restart
  must "who is primary survives down and up" is_primary 1
  wait_until_ready mariadb-2 60 has_rows mariadb-2 3
  must "the former primary is a replica with all rows" follows 2 1
}

# free_ports COUNT: the first of so many ports in a row that nothing listens on.
free_ports() {
  local first port
  for ((first = 20000 + RANDOM % 10000; first < 32000; first += $1)); do
    for ((port = first; port < first + $1; port++)); do
      ! (: <"/dev/tcp/127.0.0.1/$port") 2>/dev/null || continue 2
    done
    echo "$first"
    return
  done
}
