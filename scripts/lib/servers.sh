# shellcheck shell=bash
# The instances of the service, the lab, and nginx before them: how they are configured, started and found ready.

# ready ADDRESS: does the instance, or nginx, report that it can serve?
ready() { curl -fsS --noproxy '*' --max-time 2 "$1/health/ready"; }

start_instances() {
  local name content
  # End instances that are no longer wanted.
  while read -r name; do
    [[ " ${APPS[*]} " == *" $name "* ]] || stop_server "$name"
  done < <(recorded 'app-*')
  # user::code at debug is where the sign-in codes are logged.
  local log=${RUST_LOG:-info,seckill::user::code=debug}
  content=$(sha256sum <"$SECKILL")$(settings)$log
  # The load tools and the lab are on this machine, like every client of this stack. Without the flag they would be limited
  # as visitors are.
  for name in "${APPS[@]}"; do
    RUST_LOG=$log ensure_running "$name" "$content" \
      "$SECKILL" serve --lab --bind "127.0.0.1:${PORT_OF[$name]}" --unlimited-clients 127.0.0.0/8
    # One after the other, so that a restart leaves the others serving.
    wait_until_ready "$name" 60 ready "http://127.0.0.1:${PORT_OF[$name]}"
  done
}

# kill_command: for `sh -c`, kills the last instance: it signals the shell around it, which kills it and starts it again. It
# first checks that the process of this pid is still the recorded one.
kill_command() {
  echo "read -r pid identity _ <'$DATA/run/${APPS[-1]}.pid' &&
    [ \"\$(cut -d' ' -f22 /proc/\$pid/stat)\" = \"\${identity##*/}\" ] && kill -USR1 \$pid"
}

start_lab() {
  ensure_running lab "$(sha256sum <"$LOADTEST")$(settings)" \
    "$LOADTEST" lab --bind "127.0.0.1:$SECKILL_LAB_PORT" --kill-command "$(kill_command)"
  wait_until_ready lab 30 curl -fsS --noproxy '*' --max-time 2 "http://127.0.0.1:$SECKILL_LAB_PORT/lab/about"
}

# nginx_configuration: deploy/nginx.conf with its placeholders filled in, and the pages, into .dev/nginx/.
nginx_configuration() {
  local files connections name
  files=$(ulimit -Sn)
  connections=$((files > 16500 ? 16384 : files - 100))
  # The second server's line is repeated for each further instance.
  for name in "${APPS[@]:1}"; do echo "127.0.0.1:${PORT_OF[$name]}"; done |
    awk -v listen="127.0.0.1:$SECKILL_HTTP_PORT" -v lab="127.0.0.1:$SECKILL_LAB_PORT" -v files="$files" \
      -v connections="$connections" -v one="127.0.0.1:${PORT_OF[${APPS[0]}]}" '
    FILENAME == "-" { others[++count] = $0; next }
    { sub(/[$][{]NGX_LISTEN[}]/, listen); sub(/[$][{]NGX_FILES[}]/, files); sub(/[$][{]NGX_CONNECTIONS[}]/, connections) }
    { sub(/[$][{]NGX_ONE[}]/, one); sub(/[$][{]NGX_LAB[}]/, lab) }
    !/[$][{]NGX_TWO[}]/ { print; next }
    { for (i = 1; i <= count; i++) { line = $0; sub(/[$][{]NGX_TWO[}]/, others[i], line); print line } }
    ' - deploy/nginx.conf >"$DATA/nginx/nginx.conf"
  ln -sfn "$ROOT/web" "$DATA/nginx/web"
}

start_nginx() {
  local user=""
  # As root its workers would run as `nobody`, which may not read this folder.
  ((EUID)) || user="user root;"
  nginx_configuration
  ensure_running nginx "$(<"$DATA/nginx/nginx.conf")" \
    nginx -p "$DATA/nginx/" -c nginx.conf -e stderr -g "daemon off; $user"
  wait_until_ready nginx 30 ready "$HTTP/api"
}
