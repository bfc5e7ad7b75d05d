# shellcheck shell=bash
# Brings a server to the wanted state: started or restarted when it has to be, its port free, answering.

# ensure_running NAME CONTENT COMMAND...: leaves the server alone if it runs with this command and this CONTENT
# (whatever else its behaviour depends on), otherwise (re)starts it.
ensure_running() {
  local name=$1 signature
  signature=$(printf '%s\n' "${@:2}" | sha256sum | cut -c 1-16)
  if running "$name"; then
    if [[ $RUNNING_SIGNATURE == "$signature" ]]; then
      say "$name already runs on ${PORT_OF[$name]}"
      return
    fi
    say "$name has changed: restarting it"
  fi
  stop_server "$name"
  require_free_port "$name"
  say "starting $name on 127.0.0.1:${PORT_OF[$name]}"
  launch "$name" "$signature" "${@:3}"
}

# require_free_port NAME: ends the script when another program listens on the port of this server.
require_free_port() {
  local port=${PORT_OF[$1]} owner="" status=0
  timeout 10 bash -c ": </dev/tcp/127.0.0.1/$port" 2>/dev/null || status=$?
  ((status == 1)) && return # refused: nothing listens
  ! command -v ss >/dev/null ||
    owner=$(ss -ltnpH "sport = :$port" | sed -n 's/.*users:(("\([^"]*\)",pid=\([0-9]*\).*/\1, pid \2/p')
  die 1 "port $port, wanted for $1, is taken by ${owner:-another program}." \
    "End that program, or use another port: ${VARIABLE_OF[$1]}=12345 ./dev up (it is remembered)"
}

# wait_until_ready NAME SECONDS COMMAND...: polls until the command succeeds; gives up as soon as the server has ended,
# or at the deadline, with the end of its log.
wait_until_ready() {
  local name=$1 deadline=$((SECONDS + $2)) problem=""
  until "${@:3}" >/dev/null 2>&1; do
    if ! running "$name"; then
      problem="$name ended while starting"
      rm -f "$DATA/run/$name.pid"
    elif ((SECONDS >= deadline)); then
      problem="$name is not ready after $2 s"
    fi
    if [[ -n $problem ]]; then
      printf '\n--- the end of %s\n' "$DATA/log/$name.log" >&2
      tail -n 25 "$DATA/log/$name.log" >&2
      die 1 "$problem." "All of its log: ./dev logs $name     To begin afresh, data included: ./dev down --wipe"
    fi
    sleep 0.1
  done
}
