# shellcheck shell=bash
# ./dev test compose: docker-compose.yml as its users meet it, on whatever engine `docker` is: in a project and a network
# of its own, with other ports and secrets than the defaults. Needs neither cargo nor what ./dev up starts.

compose_usage() {
  cat <<'END'
usage: ./dev test compose [ARCHIVE]

Builds the image and runs the stack of docker-compose.yml as the project `seckill-test`: up, the demo,
the lab, killed and recreated containers, down and up again, another password, the profile `observe`.
With an ARCHIVE of ./dev release it takes that one's docker-compose.yml and programs. Its containers, volumes and network are removed at the end, also of a run that failed; the image's
build cache stays. Needs Docker with Compose 2.24 or newer, and curl.
END
}

test_compose() {
  case ${1:-} in
    "") STACK_ROOT=$ROOT ;;
    -h | --help | help) compose_usage; return ;;
    *)
      (($# == 1)) || die 2 "test compose takes an archive, not '$*'."
      unpack "$1"
      STACK_ROOT=$UNPACKED
      ;;
  esac
  require_compose
  mkdir -p "$DATA/log"
  compose_settings
  trap compose_end EXIT
  compose_remove

  say "building the image (minutes the first time), then up"
  must "everything gets healthy" in_compose up --build --quiet-pull -d --wait --wait-timeout 300
  compose_facts
  compose_load
  compose_losses
  compose_again
  compose_observe
  compose_remove
  must "no volume is left by down -v" same "" compose_volumes
  say "the tests of docker-compose.yml passed"
}

require_compose() {
  local version
  docker info >/dev/null 2>&1 || die 2 "no Docker engine answers: 'docker info' fails."
  version=$(docker compose version --short 2>/dev/null) || die 2 "'docker compose' does not work: Compose 2.24 or newer is needed."
  version=${version#v}
  [[ $(printf '%s\n' 2.24 "$version" | sort -V | head -n 1) == 2.24 ]] || die 2 "Compose 2.24 or newer is needed, found $version."
  command -v curl >/dev/null || die 2 "curl is needed."
  note "engine $(docker version --format '{{.Server.Version}}'), Compose $version"
}

# in_compose ARGUMENT...: `docker compose` on the file of this checkout or of the archive, without the caller's .env.
in_compose() {
  docker compose --env-file "$DATA/test-compose.env" --project-name seckill-test --file "$STACK_ROOT/docker-compose.yml" "$@"
}

# Sets the ports, names and secrets that a user may set, to other values than the defaults.
compose_settings() {
  local name hard port
  if [[ $STACK_ROOT == "$ROOT" ]]; then : >"$DATA/test-compose.env"
  else cp "$STACK_ROOT/.env" "$DATA/test-compose.env"; fi
  unset "${!COMPOSE_@}"
  port=$(free_ports 7)
  for name in SECKILL_HTTP_PORT SECKILL_PORT_1 SECKILL_PORT_2 SECKILL_REDIS_PORT SECKILL_MYSQL_PORT \
    SECKILL_PROMETHEUS_PORT SECKILL_GRAFANA_PORT; do
    export "$name=$port"
    port=$((port + 1))
  done
  export SECKILL_IMAGE=seckill-test SECKILL_SUBNET=172.31.237
  ADMIN_TOKEN=$(random_word) MYSQL_PASSWORD=$(random_word)
  export ADMIN_TOKEN MYSQL_PASSWORD
  hard=$(docker run --rm --entrypoint sh redis:7 -c 'ulimit -Hn')
  if [[ $hard != unlimited && $hard -lt 65536 ]]; then
    note "the engine allows $hard open files: SECKILL_NOFILE"
    export SECKILL_NOFILE=$hard
  else
    export SECKILL_NOFILE=60000
  fi
}

random_word() { od -An -v -N16 -tx1 /dev/urandom | tr -d ' \n'; }

compose_end() {
  local status=$?
  if ((status)); then
    in_compose --profile "*" logs --no-color >"$DATA/log/test-compose.log" 2>&1 || true
    note "the containers' logs: $DATA/log/test-compose.log"
  fi
  compose_remove >/dev/null 2>&1 || note "not everything could be removed: docker compose -p seckill-test down -v"
  docker image rm -f seckill-test >/dev/null 2>&1 || true
}

compose_remove() { in_compose --profile "*" down --volumes --timeout 60 >/dev/null 2>&1; }

# The project's containers, networks and volumes, one a line.
compose_containers() { docker ps -aq --filter label=com.docker.compose.project=seckill-test; }
compose_networks() { docker network ls -q --filter label=com.docker.compose.project=seckill-test; }
compose_volumes() { docker volume ls -q --filter label=com.docker.compose.project=seckill-test; }

# api PATH [CURL-ARGUMENT...]: through nginx. An HTTP error is a failure.
api() {
  curl -fsS -m 30 "http://127.0.0.1:$SECKILL_HTTP_PORT/api$1" -H 'content-type: application/json' \
    -H "x-admin-token: $ADMIN_TOKEN" "${@:2}"
}

# successes PATH [CURL-ARGUMENT...]: prints how many requests succeed. curl sends one for each number in PATH's brackets.
successes() { curl -s -m 60 "http://127.0.0.1:$SECKILL_HTTP_PORT/api$1" "${@:2}" | { grep -o '"success":true' || true; } | wc -l; }

compose_facts() {
  must "one service builds the image for all" same 1 compose_builds
  must "no port is open to other machines" same "" compose_open_ports
  must "the log of prepare says where the lab is" compose_lab_is_told
  must "SECKILL_NOFILE is kept" same "$SECKILL_NOFILE" in_compose exec -T app-1 sh -c 'ulimit -n'
  must "nginx, the instances and the lab have their addresses, the others none near" same "10 11 12 14" compose_fixed_addresses
  must "this machine signs in more users than a visitor may" same 150 successes "/user/code?phone=1380010[0000-0149]" -X POST
}
compose_builds() { in_compose --profile "*" config | grep -c '^    build:'; }
compose_open_ports() {
  docker ps --filter label=com.docker.compose.project=seckill-test --format '{{.Ports}}' |
    tr , '\n' | { grep -e '->' || true; } | { grep -v '127\.0\.0\.1:' || true; }
}
compose_lab_is_told() { [[ $(in_compose logs --no-color prepare) == *":$SECKILL_HTTP_PORT/lab#token=<ADMIN_TOKEN>"* ]]; }
# The last numbers of the addresses below .128.
compose_fixed_addresses() {
  docker ps -q --filter label=com.docker.compose.project=seckill-test |
    xargs docker inspect -f '{{range .NetworkSettings.Networks}}{{.IPAddress}}{{end}}' |
    awk -F. '$4 < 128 { print $4 }' | sort | paste -sd ' '
}

# The demo and the lab, which pauses Redis meanwhile.
compose_load() {
  say "the demo"
  must "each strategy holds, or breaks, as its guarantees say" compose_demo
  say "the lab"
  must "a run of the lab holds" lab_run
  must "and one that pauses Redis" lab_run pause-redis
  must "no killing is offered" compose_no_killing
}
compose_demo() { in_compose --profile demo run --rm -T demo; }
compose_no_killing() { [[ $(api /lab/about) == *'"faults":["pause-redis","empty-redis","cut-lease"]'* ]]; }

# lab_run [FAULT]: a run to its end; its second lane, which is safe, must hold.
lab_run() {
  local fault=${1:-} reply id state="" deadline=$((SECONDS + 240))
  reply=$(api /lab/runs -d '{"lanes":["process-lock","reentrant-lock"],"buyers":300,"tries":4,"stock":200,
    "instances":2,"spreadSeconds":6}') || return
  [[ $reply =~ \"id\":\"([0-9a-f]+)\" ]] || { note "$reply"; return 1; }
  id=${BASH_REMATCH[1]}
  while [[ $state != @(done|failed|stopped) ]]; do
    ((SECONDS < deadline)) || { note "it is still $state"; return 1; }
    sleep 0.5
    reply=$(api "/lab/runs/$id?from=1000000") || return
    [[ $reply =~ \"state\":\"([a-z]+)\" ]] && state=${BASH_REMATCH[1]}
    if [[ -n $fault && $state == running ]]; then
      api /lab/faults -d "{\"fault\":\"$fault\"}" >/dev/null || return
      fault=""
    fi
  done
  if [[ $state == "done" && -z $fault && $reply == *'"conformance":{"kind":"holds"'* && $reply != *'"kind":"violation"'* ]]; then
    return
  fi
  [[ ! $reply =~ \"failure\":\"([^\"]*)\" ]] || note "${BASH_REMATCH[1]}"
  note "state $state: $(grep -o '"conformance":{[^}]*}' <<<"$reply" | paste -sd ' ')"
  return 1
}

# Containers are killed, stopped and recreated: nginx goes on, and what was bought stays.
compose_losses() {
  say "an order, and losses"
  compose_buy
  must "the order is there" compose_order
  must "an instance is killed" in_compose kill app-1
  must "nginx goes on with the other" same 40 successes "/shop/1?n=[1-40]"
  must "MariaDB and Redis are killed" in_compose kill mariadb redis
  must "all come back" in_compose up -d --wait --wait-timeout 180
  must "the order is still there" compose_order
  # They are made anew in the opposite order (app-2 first): without fixed addresses each would get the other's.
  in_compose rm -sf app-1 app-2 >/dev/null 2>&1
  must "both instances are made anew" compose_recreate
  must "nginx finds the first alone" compose_alone app-1 app-2
  must "nginx finds the second alone" compose_alone app-2 app-1
}
compose_recreate() {
  in_compose up -d --wait --wait-timeout 120 --no-deps app-2 && in_compose up -d --wait --wait-timeout 120 --no-deps app-1
}
# compose_alone NAME OTHER: while OTHER is stopped, NAME alone answers. Starts OTHER again.
compose_alone() {
  in_compose stop "$2" && same 20 successes "/shop/1?n=[1-20]" && in_compose up -d --wait --wait-timeout 120 --no-deps "$2"
}

# The session and the voucher are kept in TOKEN and VOUCHER.
compose_buy() {
  local phone=13800139999 code reply
  api "/user/code?phone=$phone" -X POST >/dev/null
  code=$(in_compose exec -T redis redis-cli GET "login:code:$phone")
  reply=$(api /user/login -d "{\"phone\":\"$phone\",\"code\":\"${code//[^0-9]/}\"}")
  [[ $reply =~ \"data\":\"([0-9a-f]+)\" ]] || die 1 "no session: $reply"
  TOKEN=${BASH_REMATCH[1]}
  reply=$(api /voucher/seckill -d '{"shopId":1,"title":"100 for 80","payValue":8000,"actualValue":10000,"stock":10,
    "beginTime":"2024-01-01T00:00:00","endTime":"2037-12-31T00:00:00"}')
  [[ $reply =~ \"data\":([0-9]+) ]] || die 1 "no sale: $reply"
  VOUCHER=${BASH_REMATCH[1]}
  reply=$(api "/voucher-order/seckill/$VOUCHER" -X POST -H "authorization: $TOKEN")
  [[ $reply == *'"success":true'* ]] || die 1 "no order: $reply"
}
compose_order() { [[ $(api /voucher-order/of/me -H "authorization: $TOKEN") =~ \"voucherId\":\"?"$VOUCHER" ]]; }

# Down, and up again with another password for the database.
compose_again() {
  say "down, and up with another MYSQL_PASSWORD"
  must "down" in_compose --profile "*" down
  must "no container is left" same "" compose_containers
  must "no network is left" same "" compose_networks
  MYSQL_PASSWORD=$(random_word)
  must "up, which builds nothing" in_compose up -d --wait --wait-timeout 180
  must "the order was kept, and the session" compose_order
  must "the tables are in order" in_compose exec -T app-1 seckill audit
}

# Where the images cannot be pulled, stand-ins show only that the services start and end.
compose_observe() {
  local image override=() file=$DATA/test-compose-observe.yml
  say "the profile observe"
  for image in $(in_compose --profile observe config --images | grep -E '^(prom|grafana)/'); do
    docker image inspect "$image" >/dev/null 2>&1 || docker pull -q "$image" >/dev/null 2>&1 || override=(--file "$file")
  done
  if ((${#override[@]})); then
    note "its images cannot be pulled: only that its services start and end is tried"
    printf '%s\n' services: >"$file"
    for image in prometheus grafana; do
      printf '  %s: { image: "redis:7", entrypoint: [sleep, infinity], command: [] }\n' "$image" >>"$file"
    done
  fi
  must "it starts" in_compose "${override[@]}" --profile observe up -d --wait --wait-timeout 180
  ((${#override[@]})) || must "Prometheus sees both instances" compose_scraped
  must "down ends it too" in_compose --profile "*" down
  must "no container is left" same "" compose_containers
  must "no network is left" same "" compose_networks
}
compose_scraped() {
  local deadline=$((SECONDS + 60)) query="http://127.0.0.1:$SECKILL_PROMETHEUS_PORT/api/v1/query?query=sum(up)"
  until [[ $(curl -fsS -g -m 5 "$query") == *'"2"]'* ]]; do
    ((SECONDS < deadline)) || return 1
    sleep 1
  done
}
