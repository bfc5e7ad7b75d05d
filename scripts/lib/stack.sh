# shellcheck shell=bash
# Which servers the stack has, by the flags of `up` and `demo`, which are remembered in .dev/stack; and their ports.

# The kinds, as the flags give them; `prepare` fills in what was used last, or the default.
REDIS_KIND="" DATABASE_KIND="" INSTANCES=""

# stack_flags ARG...: takes the stack's flags out of the arguments; what remains is in REST.
stack_flags() {
  REST=()
  while (($#)); do
    case $1 in
      --redis | --database | --instances)
        (($# > 1)) || die 2 "$1 needs a value; see ./dev --help."
        stack_flag "$1" "$2"
        shift
        ;;
      -h | --help | help)
        usage
        exit
        ;;
      --redis=* | --database=* | --instances=*) stack_flag "${1%%=*}" "${1#*=}" ;;
      *) REST+=("$1") ;;
    esac
    shift
  done
}

stack_flag() {
  case $1=$2 in
    --redis=single | --redis=sentinel | --redis=cluster) REDIS_KIND=$2 ;;
    --database=single | --database=replicated | --database=oceanbase) DATABASE_KIND=$2 ;;
    --instances=[1-8]) INSTANCES=$2 ;;
    --redis=*) die 2 "--redis is single, sentinel or cluster, not '$2'." ;;
    --database=*) die 2 "--database is single, replicated or oceanbase, not '$2'." ;;
    *) die 2 "--instances is a number from 1 to 8, not '$2'." ;;
  esac
}

# remembered FILE NAME: its value in .dev/FILE, or nothing.
remembered() { [[ ! -f $DATA/$1 ]] || sed -n "s/^$2=//p" "$DATA/$1"; }

pick_stack() {
  REDIS_KIND=${REDIS_KIND:-$(remembered stack REDIS_KIND)}
  DATABASE_KIND=${DATABASE_KIND:-$(remembered stack DATABASE_KIND)}
  INSTANCES=${INSTANCES:-$(remembered stack INSTANCES)}
  REDIS_KIND=${REDIS_KIND:-single} DATABASE_KIND=${DATABASE_KIND:-single} INSTANCES=${INSTANCES:-2}
}

remember_stack() {
  printf '%s\n' "REDIS_KIND=$REDIS_KIND" "DATABASE_KIND=$DATABASE_KIND" "INSTANCES=$INSTANCES" >"$DATA/stack"
}

# The variables that move ports: of each instance, of nginx, of the lab, and the first ports of Redis and of MariaDB.
port_variables() {
  local number
  echo SECKILL_HTTP_PORT SECKILL_LAB_PORT SECKILL_REDIS_PORT SECKILL_MYSQL_PORT
  for ((number = 1; number <= INSTANCES; number++)); do echo "SECKILL_PORT_$number"; done
}

# pick_port VARIABLE DEFAULT: the environment decides, then what was used last, then the default.
pick_port() {
  local value=${!1:-}
  value=${value:-$(remembered ports "$1")}
  value=${value:-$2}
  [[ $value =~ ^[1-9][0-9]{3,4}$ && $value -ge 1024 && $value -le 65500 ]] ||
    die 2 "$1 is '$value'; it must be a port between 1024 and 65500."
  printf -v "$1" %s "$value"
}

pick_ports() {
  local number variable default=8081
  pick_port SECKILL_HTTP_PORT 8080
  pick_port SECKILL_LAB_PORT 8089
  pick_port SECKILL_REDIS_PORT 16379
  pick_port SECKILL_MYSQL_PORT 13306
  for ((number = 1; number <= INSTANCES; number++)); do
    variable=SECKILL_PORT_$number
    pick_port "$variable" "$default"
    default=$((${!variable} + 1))
  done
  HTTP=http://127.0.0.1:$SECKILL_HTTP_PORT
}

remember_ports() {
  local name
  for name in $(port_variables); do echo "$name=${!name}"; done >"$DATA/ports"
}

# Of each server that any stack has: its port, and the variable that moves it.
declare -A PORT_OF=() VARIABLE_OF=()
# Those of this stack, by name; the instances apart, as app-PORT.
SERVERS=() APPS=()

# assign_ports VARIABLE OFFSET NAME...: gives these servers consecutive ports, from OFFSET behind the port in VARIABLE. Each
# kind has ports of its own, so that none waits for another to give up its port.
assign_ports() {
  local name port=$((${!1} + $2))
  for name in "${@:3}"; do
    PORT_OF[$name]=$port VARIABLE_OF[$name]=$1
    port=$((port + 1))
  done
}

list_servers() {
  local number name twice
  assign_ports SECKILL_HTTP_PORT 0 nginx
  assign_ports SECKILL_LAB_PORT 0 lab
  assign_ports SECKILL_MYSQL_PORT 0 mariadb mariadb-1 mariadb-2 haproxy oceanbase
  assign_ports SECKILL_REDIS_PORT 0 redis redis-{1..3} sentinel-{1..3} cluster-{1..6} bus-{1..6}
  APPS=()
  for ((number = 1; number <= INSTANCES; number++)); do
    name=SECKILL_PORT_$number
    assign_ports "$name" 0 "app-${!name}"
    APPS+=("app-${!name}")
  done
  SERVERS=(nginx lab)
  case $DATABASE_KIND in
    single) SERVERS+=(mariadb) ;;
    replicated) SERVERS+=(mariadb-{1,2} haproxy) ;;
    oceanbase) SERVERS+=(oceanbase) ;;
  esac
  case $REDIS_KIND in
    single) SERVERS+=(redis) ;;
    sentinel) SERVERS+=(redis-{1..3} sentinel-{1..3}) ;;
    cluster) SERVERS+=(cluster-{1..6}) ;;
  esac
  twice=$(for name in "${SERVERS[@]}" "${APPS[@]}"; do echo "${PORT_OF[$name]}"; done | sort | uniq -d)
  [[ -z $twice ]] || die 2 "port ${twice%%$'\n'*} is asked for twice; see ./dev --help for the variables."
}
