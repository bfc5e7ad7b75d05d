# shellcheck shell=bash
# Processes of the stack. Each is recorded in .dev/run/NAME.pid as pid, identity (boot and start time), a
# signature of its command and configuration, and port, so that exactly that process is ended, and no other of the same pid.

BOOT=$(</proc/sys/kernel/random/boot_id)

# process_identity PID: boot and start time, which no later process of the same pid shares. Empty for a process that
# has ended, also while its parent has not collected its status.
process_identity() {
  local stat fields
  { stat=$(<"/proc/$1/stat"); } 2>/dev/null || return 0
  read -ra fields <<<"${stat##*) }"
  # Behind the command's name come the state (Z: ended, not collected) and, as the twentieth field, the start time.
  if [[ ${fields[0]} != Z ]]; then printf '%s/%s' "$BOOT" "${fields[19]}"; fi
}

# running NAME: is the process alive that we started under this name? Sets RUNNING_PID and RUNNING_SIGNATURE.
running() {
  local identity
  { read -r RUNNING_PID identity RUNNING_SIGNATURE _ <"$DATA/run/$1.pid"; } 2>/dev/null || return 1
  [[ -n $identity && $(process_identity "$RUNNING_PID") == "$identity" ]]
}

# orphans NAME: pids of the children that outlived a killed server, such as nginx's workers, and keep its port. They
# are known by their session, which `launch` made for that server alone.
orphans() {
  local pid identity file stat fields
  { read -r pid identity _ <"$DATA/run/$1.pid"; } 2>/dev/null || return 0
  [[ $identity == "$BOOT"/* && -z $(process_identity "$pid") ]] || return 0
  for file in /proc/[0-9]*/stat; do
    { stat=$(<"$file"); } 2>/dev/null || continue
    read -ra fields <<<"${stat##*) }"
    # The fourth field is the session.
    if [[ ${fields[3]} == "$pid" && ${fields[0]} != Z ]]; then echo "${stat%% *}"; fi
  done
}

# restart_when_killed COMMAND...: runs it, and again after SIGKILL (status 137), as a service manager would. SIGTERM is
# passed on to it and ends both; SIGUSR1 kills it, for the lab. It runs in a shell of its own.
restart_when_killed() {
  local child="" status stopping=0
  trap 'stopping=1; [[ -z $child ]] || kill -TERM "$child"' TERM
  trap '[[ -z $child ]] || kill -KILL "$child"' USR1
  while :; do
    "$@" &
    child=$!
    ((!stopping)) || kill -TERM "$child"
    # A signal to this shell ends `wait`, not the child.
    while :; do
      status=0
      wait "$child" || status=$?
      [[ -n $(jobs -pr) ]] || break
    done
    child=""
    ((status == 137 && !stopping)) || exit "$status"
    echo "./dev: it was killed; starting it again" >&2
    sleep 0.2
  done
}

# recorded PATTERN: the names of the processes that we started and have not stopped since.
recorded() { find "$DATA/run" -name "$1.pid" -printf '%f\n' | sed 's/\.pid$//' | sort; }

# recorded_port NAME: the port that it was started with.
recorded_port() { awk '{ print $4 }' "$DATA/run/$1.pid"; }

# launch NAME SIGNATURE COMMAND...: starts it in the background, in a session of its own (so that a Ctrl-C here does not reach
# it), with its output in .dev/log/NAME.log.
launch() {
  local name=$1 signature=$2 log=$DATA/log/$1.log
  shift 2
  if [[ -f $log && $(stat -c %s "$log") -ge 50000000 ]]; then mv "$log" "$log.old"; fi
  (
    # 9 is the lock of ./dev (scripts/lib/settings.sh), which a server must not keep.
    exec 9<&- </dev/null >>"$log" 2>&1
    if [[ $name == app-* || $name == lab ]]; then export_settings; fi
    if [[ $name != app-* ]]; then exec setsid -- "$@"; fi
    export -f restart_when_killed
    exec setsid -- bash -c 'restart_when_killed "$@"' restart_when_killed "$@"
  ) &
  echo "$! $(process_identity $!) $signature ${PORT_OF[$name]}" >"$DATA/run/$name.pid"
}

# stop_server NAME: SIGTERM, waited for. The instances get their time to finish the purchases in hand.
stop_server() {
  local tenth pid signal=TERM
  if running "$1"; then
    kill -TERM "$RUNNING_PID" 2>/dev/null || true # unless it has just ended by itself
    for ((tenth = 0; tenth < 400; tenth++)); do
      running "$1" || break
      sleep 0.1
    done
    if running "$1"; then
      note "$1 did not end within 40 s: killing it"
      signal=KILL
      kill -KILL "$RUNNING_PID" 2>/dev/null || true
      while running "$1"; do sleep 0.1; done
    fi
  fi
  for pid in $(orphans "$1"); do kill -"$signal" "$pid" 2>/dev/null || true; done
  while [[ -n $(orphans "$1") ]]; do sleep 0.1; done
  rm -f "$DATA/run/$1.pid"
}
