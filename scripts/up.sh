# shellcheck shell=bash
# ./dev up, ./dev down: the whole stack, started and ended.

# claim_ports: before the long build, rather than after it.
claim_ports() {
  running nginx || stop_server nginx # its orphans
  running redis || require_free_port SECKILL_REDIS_PORT redis
  running "app-$SECKILL_PORT_1" || require_free_port SECKILL_PORT_1 "the first instance"
  running "app-$SECKILL_PORT_2" || require_free_port SECKILL_PORT_2 "the second instance"
  running nginx || require_free_port SECKILL_HTTP_PORT nginx
}

# start_databases: MariaDB and Redis, which then stay when tests that started MariaDB end.
start_databases() {
  rm -f "$DATA/run/mariadb.for-tests"
  start_mariadb
  start_redis
  remember_ports
}

up() {
  (($# == 0)) || die 2 "up takes no arguments, but was given '$*'."
  prerequisites
  prepare
  lock
  claim_ports
  start_databases
  say "building (minutes the first time, seconds afterwards)"
  build "$PROFILE" seckill seckill-loadtest
  say "migrating the database and seeding it"
  (export_settings && exec "$SECKILL" migrate 9<&-)
  (export_settings && exec "$SECKILL" seed 9<&-)
  start_instances
  start_nginx
  unlock
  say "ready: $HTTP (two instances behind it)"
}

# stack_runs: one instance is enough, as the load tool also shows the loss of the other.
stack_runs() {
  running nginx && { running "app-$SECKILL_PORT_1" || running "app-$SECKILL_PORT_2"; }
}

down() {
  local names=() name wipe=${1:-}
  [[ -z $wipe || $wipe == --wipe ]] || die 2 "down knows only --wipe, not '$wipe'."
  [[ -d $DATA ]] || { say "nothing runs"; return; }
  prepare
  exec 8>>"$DATA/run/tests.lock"
  flock -n 8 || die 1 "the tests of this checkout are running, on its database." "Wait for them or end them, then run ./dev down again."
  lock
  mapfile -t names < <(instances)
  # Both instances drain at the same time; what they depend on ends only afterwards.
  for name in "${names[@]}"; do ! running "$name" || kill -TERM "$RUNNING_PID" || true; done
  for name in "${names[@]}" nginx redis mariadb; do
    [[ ! -e $DATA/run/$name.pid ]] || say "stopping $name"
    stop_server "$name"
  done
  if [[ $wipe == --wipe ]]; then
    rm -rf "$DATA"
    say "everything is stopped and its data removed"
  else
    say "everything is stopped; the data stays in .dev/ (remove it with: ./dev down --wipe)"
  fi
}
