# shellcheck shell=bash
# ./dev up, ./dev down: the whole stack, started and ended.

# claim_ports: ends the script where a port is taken. Called before the long build.
claim_ports() {
  local name
  for name in "${SERVERS[@]}" "${APPS[@]}"; do
    ! running "$name" || continue
    stop_server "$name" # its orphans
    require_free_port "$name"
  done
}

start_servers() {
  start_database
  start_redis
  remember_ports
}

# switch_stack: ends what the present flags and ports do not need. Where a kind has changed, Redis begins empty: what it
# knows belongs to the database that it stood beside, and an old state of it must not come back.
switch_stack() {
  local name port before
  before=$(remembered stack REDIS_KIND),$(remembered stack DATABASE_KIND)
  [[ $before != , ]] || before=single,single
  if [[ $before != "$REDIS_KIND,$DATABASE_KIND" ]]; then
    [[ ! -e $DATA/ports ]] || say "other servers than before: Redis begins empty, and each kind of database has its own data"
    stop_servers 'app-*' nginx 'sentinel-*' 'redis*' 'cluster-*'
    rm -rf "${REDIS_FOLDERS[@]/#/$DATA/}"
  fi
  while read -r name; do
    port=$(recorded_port "$name")
    port=${port:-${PORT_OF[$name]:-}} # an older ./dev recorded none
    [[ $name == app-* || $port == "${PORT_OF[$name]:-}" && " ${SERVERS[*]} " == *" $name "* ]] || end_server "$name"
  done < <(recorded '*')
  remember_stack
}

# stop_servers PATTERN...: ends them in this order; the instances drain at the same time.
stop_servers() {
  local name pattern
  while read -r name; do
    ! running "$name" || kill -TERM "$RUNNING_PID" || true
  done < <(recorded 'app-*')
  for pattern; do
    while read -r name; do end_server "$name"; done < <(recorded "$pattern")
  done
}

end_server() {
  say "stopping $1"
  stop_server "$1"
}

up() {
  stack_flags "$@"
  [[ ${REST[*]} != --promote ]] || { promote; return; }
  ((${#REST[@]} == 0)) ||
    die 2 "up takes --redis, --database and --instances, or only --promote, not '${REST[*]}'; see ./dev --help."
  take_stack
  prerequisites
  enough_space
  trap name_what_runs EXIT
  switch_stack
  claim_ports
  start_servers
  say "building (minutes the first time, seconds afterwards)"
  build_programs
  say "migrating the database and seeding it"
  (export_settings && exec "$SECKILL" migrate 9<&-)
  (export_settings && exec "$SECKILL" seed 9<&-)
  start_instances
  start_lab
  start_nginx
  trap - EXIT
  unlock
  say "ready: $HTTP (instances: $INSTANCES, Redis: $REDIS_KIND, database: $DATABASE_KIND)"
  say "the lab: $(lab_link)"
}

# name_what_runs: called at the end of an `up` that failed or was interrupted.
name_what_runs() {
  local name names=()
  while read -r name; do
    ! running "$name" || names+=("$name")
  done < <(recorded '*')
  ((${#names[@]} == 0)) || printf '       %s\n' "These servers run on: ${names[*]}. To end them: ./dev down" >&2
}

# stack_runs: one instance is enough, as the load tool also shows the loss of another.
stack_runs() {
  local name
  running nginx || return
  for name in "${APPS[@]}"; do ! running "$name" || return 0; done
  return 1
}

down() {
  local wipe=${1:-}
  [[ -z $wipe || $wipe == --wipe ]] || die 2 "down knows only --wipe, not '$wipe'."
  [[ -d $DATA ]] || { say "nothing runs"; return; }
  take_stack
  # The instances end before what they depend on; HAProxy and the Sentinels end before the servers that they watch.
  stop_servers lab 'app-*' nginx haproxy 'sentinel-*' 'redis*' 'cluster-*' 'mariadb*' oceanbase
  unlock
  if [[ $wipe == --wipe ]]; then
    rm -rf "$DATA"
    say "everything is stopped and its data removed"
  else
    say "everything is stopped; the data stays in .dev/ (remove it with: ./dev down --wipe)"
  fi
}
