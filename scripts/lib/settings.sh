# shellcheck shell=bash
# Secrets and settings of the stack, and the lock that serializes two ./dev of one checkout.

# lab_link: the lab's address, with the token that its buttons need.
lab_link() { echo "$HTTP/lab#token=$(secret admin)"; }

# secret NAME: a password, made once, readable by its owner only, and never an argument of a program.
secret() {
  [[ -s $DATA/secrets/$1 ]] ||
    (umask 077 && od -An -v -N16 -tx1 /dev/urandom | tr -d ' \n' >"$DATA/secrets/$1")
  printf %s "$(<"$DATA/secrets/$1")"
}

# take_stack: for commands that change the stack. The lock comes first: another ./dev may be changing what `prepare` reads.
take_stack() {
  lock
  prepare
}

# prepare: the data folder, which servers with which ports, and the limit of open files. Starts nothing.
prepare() {
  [[ ! -e $DATA || -O $DATA ]] ||
    die 2 "$DATA belongs to $(stat -c %U "$DATA"): run ./dev as that user," "or remove it with ./dev down --wipe as that user."
  mkdir -p "$DATA"/{run,log,nginx,secrets}
  chmod 700 "$DATA"
  pick_stack
  pick_ports
  list_servers
  # For thousands of clients at once: as many open files as the hard limit allows, up to 65536.
  local hard
  hard=$(ulimit -Hn)
  [[ $hard != unlimited && $hard -lt 65536 ]] || hard=65536
  ulimit -Sn "$hard"
}

# settings: lines NAME=VALUE for the service, the load tool and a developer's shell. Every value is plain
# [A-Za-z0-9:/@,._?=-], so the lines need no quoting.
settings() {
  local mysql nodes
  case $DATABASE_KIND in
    single) mysql=$(mysql_url mariadb) ;;
    replicated) mysql=$(mysql_url haproxy) ;;
    # It lacks the collation that some clients ask for by default.
    oceanbase) mysql="$(mysql_url oceanbase)?collation=utf8mb4_general_ci" ;;
  esac
  nodes=$(addresses http:// "${APPS[@]}")
  echo "DATABASE_URL=$mysql"
  case $REDIS_KIND in
    single) echo "REDIS_URL=$(addresses redis:// redis)/" ;;
    sentinel) echo "REDIS_URL=redis-sentinel://$(addresses "" sentinel-{1..3})/$MASTER_NAME" ;;
    cluster) echo "REDIS_URL=redis-cluster://$(addresses "" cluster-{1..6})" ;;
  esac
  echo "ADMIN_TOKEN=$(secret admin)"
  echo "TARGETS=$HTTP"
  echo "NODES=$nodes"
  echo "SECKILL_LAB=true"
}

# mysql_url NAME: the address of the database on the port of this server.
mysql_url() { printf 'mysql://seckill:%s@127.0.0.1:%s/seckill' "$(secret mysql)" "${PORT_OF[$1]}"; }

# addresses PREFIX NAME...: PREFIX127.0.0.1:PORT of each server, with commas between them.
addresses() {
  local name list=""
  for name in "${@:2}"; do list+=,${1}127.0.0.1:${PORT_OF[$name]}; done
  printf %s "${list#,}"
}

# export_settings: only in subshells, or before `exec`: nginx, Redis and cargo must not inherit any of it.
export_settings() {
  local line
  while read -r line; do export "${line?}"; done < <(settings)
}

# lock: two ./dev of one checkout would start everything twice. The descriptor is closed for whatever we start. The
# folder is locked, not a file in it, as an editor or git replaces files. A second call does nothing.
LOCKED=""
lock() {
  [[ -z $LOCKED ]] || return 0
  exec 9<"$ROOT"
  flock -n 9 || { say "waiting for another ./dev of this checkout"; flock 9; }
  LOCKED=1
}
unlock() {
  exec 9<&-
  LOCKED=""
}
