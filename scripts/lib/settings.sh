# shellcheck shell=bash
# Ports, secrets and settings of the stack, and the lock that serializes two ./dev of one checkout.

PORTS=(SECKILL_HTTP_PORT SECKILL_PORT_1 SECKILL_PORT_2 SECKILL_REDIS_PORT SECKILL_MYSQL_PORT)

# pick_port VARIABLE DEFAULT: the environment decides, then what was used last, then the default.
pick_port() {
  local value=${!1:-}
  [[ -n $value || ! -f $DATA/ports ]] || value=$(sed -n "s/^$1=//p" "$DATA/ports")
  value=${value:-$2}
  [[ $value =~ ^[1-9][0-9]{3,4}$ && $value -ge 1024 && $value -le 65535 ]] ||
    die 2 "$1 is '$value'; it must be a port between 1024 and 65535."
  printf -v "$1" %s "$value"
}

pick_ports() {
  pick_port SECKILL_HTTP_PORT 8080
  pick_port SECKILL_PORT_1 8081
  pick_port SECKILL_PORT_2 8082
  pick_port SECKILL_REDIS_PORT 16379
  pick_port SECKILL_MYSQL_PORT 13306
  local name twice
  twice=$(for name in "${PORTS[@]}"; do echo "${!name}"; done | sort | uniq -d)
  [[ -z $twice ]] || die 2 "port $twice is asked for twice; see ./dev --help for the variables."
  HTTP=http://127.0.0.1:$SECKILL_HTTP_PORT
}

remember_ports() {
  local name
  for name in "${PORTS[@]}"; do echo "$name=${!name}"; done >"$DATA/ports"
}

# secret NAME: a password, made once, readable by its owner only, and never an argument of a program.
secret() {
  [[ -s $DATA/secrets/$1 ]] ||
    (umask 077 && od -An -v -N16 -tx1 /dev/urandom | tr -d ' \n' >"$DATA/secrets/$1")
  printf %s "$(<"$DATA/secrets/$1")"
}

# prepare: the data folder, the ports, and the limit of open files. Starts nothing.
prepare() {
  [[ ! -e $DATA || -O $DATA ]] ||
    die 2 "$DATA belongs to $(stat -c %U "$DATA"): run ./dev as that user," "or remove it with ./dev down --wipe as that user."
  mkdir -p "$DATA"/{run,log,redis,nginx,secrets}
  chmod 700 "$DATA"
  pick_ports
  # For thousands of clients at once: as many descriptors as the machine allows us anyway.
  local hard
  hard=$(ulimit -Hn)
  [[ $hard != unlimited && $hard -lt 65536 ]] || hard=65536
  ulimit -Sn "$hard"
}

# settings: lines NAME=VALUE for the service, the load tool and a developer's shell. Every value is plain
# [A-Za-z0-9:/@._-], so the lines need no quoting.
settings() {
  local mysql
  mysql=mysql://seckill:$(secret mysql)@127.0.0.1:$SECKILL_MYSQL_PORT/seckill
  echo "DATABASE_URL=$mysql"
  echo "TEST_DATABASE_URL=$mysql"
  echo "REDIS_URL=redis://127.0.0.1:$SECKILL_REDIS_PORT/"
  echo "ADMIN_TOKEN=$(secret admin)"
  echo "TARGETS=$HTTP"
  echo "NODES=http://127.0.0.1:$SECKILL_PORT_1,http://127.0.0.1:$SECKILL_PORT_2"
  echo "LAB_ENTRY=$HTTP"
  echo "LAB_PEERS=http://127.0.0.1:$SECKILL_PORT_1,http://127.0.0.1:$SECKILL_PORT_2"
  echo "SECKILL_LAB=true"
}

# export_settings: only in subshells, or before `exec`: nginx, Redis and cargo must not inherit any of it.
export_settings() {
  local line
  while read -r line; do export "${line?}"; done < <(settings)
}

# lock: two ./dev of one checkout would start everything twice. The descriptor is closed for whatever we start. The
# folder is locked, not a file in it, which an editor or git replaces.
lock() {
  exec 9<"$ROOT"
  flock -n 9 || { say "waiting for another ./dev of this checkout"; flock 9; }
}
unlock() { exec 9<&-; }
