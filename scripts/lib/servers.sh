# shellcheck shell=bash
# The servers of the stack: how each is configured, started and found ready.

mariadb_answers() {
  MYSQL_PWD=$(secret mysql) mariadb --no-defaults --protocol=tcp -h 127.0.0.1 \
    -P "$SECKILL_MYSQL_PORT" -u seckill -e 'SELECT 1' seckill
}

start_mariadb() {
  local as_root=() password
  # It refuses to run as root unless told; here it owns nothing but its data folder.
  ((EUID)) || as_root=(--user=root)
  if [[ ! -d $DATA/mysql ]]; then
    say "creating the database files"
    rm -rf "$DATA/mysql.new"
    mkdir "$DATA/mysql.new"
    # Only the owner of the checkout can sign in as the database's root, by local socket. Run from inside the
    # folder, as this program splits a path at spaces; --force, or it looks up the name of the machine.
    (
      cd "$DATA/mysql.new"
      mariadb-install-db --no-defaults "${as_root[@]}" --datadir=. --force --skip-test-db \
        --skip-name-resolve --auth-root-authentication-method=socket \
        --auth-root-socket-user="$(id -un)"
    ) >"$DATA/log/mariadb-install.log" 2>&1 ||
      die 1 "mariadb-install-db failed:" "$(tail -n 8 "$DATA/log/mariadb-install.log")"
    mv "$DATA/mysql.new" "$DATA/mysql"
  fi
  # Run at every start; the tests make databases of their own, named seckill_test_….
  password=$(secret mysql)
  (umask 077 && cat >"$DATA/secrets/init.sql") <<END
CREATE DATABASE IF NOT EXISTS seckill CHARACTER SET utf8mb4;
CREATE USER IF NOT EXISTS 'seckill'@'127.0.0.1';
ALTER USER 'seckill'@'127.0.0.1' IDENTIFIED BY '$password';
GRANT ALL ON seckill.* TO 'seckill'@'127.0.0.1';
GRANT ALL ON \`seckill\\_%\`.* TO 'seckill'@'127.0.0.1';
END
  # flush-log-at-trx-commit=1: a committed order survives the loss of power. The socket's name is
  # relative to the data folder, as a path of more than 107 bytes would be refused.
  ensure_running mariadb SECKILL_MYSQL_PORT "$password" \
    mariadbd --no-defaults "${as_root[@]}" --datadir="$DATA/mysql" --init-file="$DATA/secrets/init.sql" \
    --bind-address=127.0.0.1 --port="$SECKILL_MYSQL_PORT" --socket=mariadb.sock \
    --pid-file=mariadb.pid --skip-name-resolve --character-set-server=utf8mb4 \
    --innodb-flush-log-at-trx-commit=1 --innodb-buffer-pool-size=256M --max-connections=400
  wait_until_ready mariadb 60 mariadb_answers
}

redis_answers() {
  [[ $(redis-cli -h 127.0.0.1 -p "$SECKILL_REDIS_PORT" ping) == PONG ]]
}

start_redis() {
  # everysec: killing Redis loses nothing, losing power at most a second. That is enough here, as
  # Redis only admits, locks and caches; `always` would put a disk write before every lock.
  ensure_running redis SECKILL_REDIS_PORT "" \
    redis-server --bind 127.0.0.1 --port "$SECKILL_REDIS_PORT" --dir "$DATA/redis" \
    --appendonly yes --appendfsync everysec --save "" --daemonize no
  wait_until_ready redis 60 redis_answers
}

# instances: the names (app-PORT) of those that we started and have not stopped since.
instances() { find "$DATA/run" -name 'app-*.pid' -printf '%f\n' | sed 's/\.pid$//' | sort; }

# ready ADDRESS: does the instance, or nginx, report that it can serve?
ready() { curl -fsS --noproxy '*' --max-time 2 "$1/health/ready"; }

start_instances() {
  local port name content
  # End instances on ports that are no longer configured.
  while read -r name; do
    [[ $name == app-@($SECKILL_PORT_1|$SECKILL_PORT_2) ]] || stop_server "$name"
  done < <(instances)
  # user::code at debug is where the sign-in codes are logged.
  local log=${RUST_LOG:-info,seckill::user::code=debug}
  content=$(sha256sum <"$SECKILL")$(settings)$log
  # The load tools reach the instances through nginx, which names them as it saw them: on this machine, like every
  # client of this stack. Without the flag they would be limited as visitors are.
  for port in SECKILL_PORT_1 SECKILL_PORT_2; do
    RUST_LOG=$log ensure_running "app-${!port}" "$port" "$content" \
      "$SECKILL" serve --lab --bind "127.0.0.1:${!port}" --unlimited-clients 127.0.0.0/8
    # One after the other, so that a restart leaves the other one serving.
    wait_until_ready "app-${!port}" 60 ready "http://127.0.0.1:${!port}"
  done
}

start_nginx() {
  local user="" files connections
  # As root its workers would run as `nobody`, which may not read this folder.
  ((EUID)) || user="user root;"
  files=$(ulimit -Sn)
  connections=$((files > 16500 ? 16384 : files - 100))
  sed -e "s/\${NGX_LISTEN}/127.0.0.1:$SECKILL_HTTP_PORT/" -e "s/\${NGX_FILES}/$files/" \
    -e "s/\${NGX_CONNECTIONS}/$connections/" \
    -e "s/\${NGX_ONE}/127.0.0.1:$SECKILL_PORT_1/g" -e "s/\${NGX_TWO}/127.0.0.1:$SECKILL_PORT_2/" \
    deploy/nginx.conf >"$DATA/nginx/nginx.conf"
  ensure_running nginx SECKILL_HTTP_PORT "$(<"$DATA/nginx/nginx.conf")" \
    nginx -p "$DATA/nginx/" -c nginx.conf -e stderr -g "daemon off; $user"
  wait_until_ready nginx 30 ready "$HTTP/api"
}
