# shellcheck shell=bash
# The database: one MariaDB; or a primary with a semi-synchronous replica, and HAProxy before the pair as its one address; or
# OceanBase's engine. The number of the pair's primary, 1 or 2, is kept in .dev/mysql-primary.

start_database() { "start_database_$DATABASE_KIND"; }

# mariadb_answers NAME: through the port of this server.
mariadb_answers() {
  MYSQL_PWD=$(secret mysql) mariadb --no-defaults --protocol=tcp -h 127.0.0.1 \
    -P "${PORT_OF[$1]}" -u seckill -e 'SELECT 1' seckill
}

# mariadb_folder FOLDER: makes the database files, unless they are there.
mariadb_folder() {
  local folder=$1 as_root=()
  [[ ! -d $folder ]] || return 0
  ((EUID)) || as_root=(--user=root)
  say "creating the database files in .dev/${folder##*/}"
  rm -rf "$folder.new"
  mkdir "$folder.new"
  # Only the owner of the checkout can sign in as the database's root, by local socket. The program is run from
  # inside the folder, as it splits a path at spaces; without --force it would look up the name of the machine.
  (
    cd "$folder.new"
    mariadb-install-db --no-defaults "${as_root[@]}" --datadir=. --force --skip-test-db \
      --skip-name-resolve --auth-root-authentication-method=socket \
      --auth-root-socket-user="$(id -un)"
  ) >"$DATA/log/mariadb-install.log" 2>&1 ||
    die 1 "mariadb-install-db failed:" "$(tail -n 8 "$DATA/log/mariadb-install.log")"
  mv "$folder.new" "$folder"
}

# run_mariadb NAME FOLDER CONTENT OPTION...
run_mariadb() {
  local name=$1 folder=$2 content=$3 as_root=()
  # It refuses to run as root unless told; here it owns nothing but its data folder.
  ((EUID)) || as_root=(--user=root)
  mariadb_folder "$folder"
  # flush-log-at-trx-commit=1: a committed order survives the loss of power. The socket's name is
  # relative to the data folder, as a path of more than 107 bytes would be refused.
  ensure_running "$name" "$content" \
    mariadbd --no-defaults "${as_root[@]}" --datadir="$folder" \
    --bind-address=127.0.0.1 --port="${PORT_OF[$name]}" --socket=mariadb.sock \
    --pid-file=mariadb.pid --skip-name-resolve --character-set-server=utf8mb4 \
    --innodb-flush-log-at-trx-commit=1 --innodb-buffer-pool-size=256M --max-connections=3000 "${@:4}"
}

# `./dev test api` and `./dev test browser` make databases of their own.
our_user() {
  cat <<END
CREATE DATABASE IF NOT EXISTS seckill CHARACTER SET utf8mb4;
CREATE USER IF NOT EXISTS 'seckill'@'127.0.0.1';
ALTER USER 'seckill'@'127.0.0.1' IDENTIFIED BY '$(secret mysql)';
GRANT ALL ON seckill.* TO 'seckill'@'127.0.0.1';
GRANT ALL ON seckill_test_api.* TO 'seckill'@'127.0.0.1';
GRANT ALL ON seckill_test_browser.* TO 'seckill'@'127.0.0.1';
END
}

start_database_single() {
  # Run at every start.
  (umask 077 && our_user >"$DATA/secrets/init.sql")
  run_mariadb mariadb "$DATA/mysql" "$(secret mysql)" --init-file="$DATA/secrets/init.sql"
  wait_until_ready mariadb 60 mariadb_answers mariadb
}

# start_database_oceanbase: a new one has a root without a password, until the users are made.
start_database_oceanbase() {
  local program
  program=$(server_root oceanbase)/bin/seekdb
  get_server oceanbase
  mkdir -p "$DATA/oceanbase"
  ensure_running oceanbase "$(secret mysql)$(<scripts/lib/oceanbase.txt)" \
    "$program" --nodaemon --port="${PORT_OF[oceanbase]}" --base-dir="$DATA/oceanbase" \
    --parameter memory_budget=2G --parameter datafile_size=64M --parameter log_disk_size=2G \
    --parameter syslog_level=WARN --parameter max_syslog_file_count=2
  wait_until_ready oceanbase 60 oceanbase_users
}

# oceanbase_users: makes them, or finds them made.
oceanbase_users() {
  ! mariadb_answers oceanbase || return 0
  { our_user; echo "ALTER USER root IDENTIFIED BY '$(secret mysql)';"; } |
    mariadb --no-defaults --protocol=tcp -h 127.0.0.1 -P "${PORT_OF[oceanbase]}" -u root &&
    mariadb_answers oceanbase
}

# mariadb_root NUMBER [OPTION...]: as the database's root, on server mariadb-NUMBER; statements come on standard input.
mariadb_root() {
  (cd "$DATA/mysql-$1" && exec mariadb --no-defaults --protocol=socket --socket=mariadb.sock -u "$(id -un)" "${@:2}")
}

# primary: the number of the server that is the primary, or was it last.
primary() { if [[ -s $DATA/mysql-primary ]]; then cat "$DATA/mysql-primary"; else echo 1; fi; }

# Both start read-only and without waiting for each other; then one becomes the primary. A commit waits for the replica
# for up to an hour: what was answered as success is on both. HAProxy asks each server whether it is writable.
start_database_replicated() {
  local primary replica number
  primary=$(primary) replica=$((3 - primary))
  for number in 1 2; do run_replicated "$number"; done
  if [[ $(mariadb_root "$primary" -N -e 'SELECT @@rpl_semi_sync_master_enabled') == 0 ]]; then
    { echo "SET GLOBAL read_only=0;"; our_user; replication_users; } | mariadb_root "$primary"
  fi
  follow "$replica" "$primary"
  mariadb_root "$primary" -e 'SET GLOBAL rpl_semi_sync_master_enabled=1'
  wait_until_ready "mariadb-$primary" 60 commits_wait "$primary"
  start_haproxy
}

run_replicated() {
  run_mariadb "mariadb-$1" "$DATA/mysql-$1" "" \
    --server-id="$1" --log-bin=binlog --binlog-format=ROW --sync-binlog=1 --log-slave-updates --gtid-strict-mode \
    --relay-log=relay --read-only --rpl-semi-sync-slave-enabled \
    --rpl-semi-sync-master-wait-point=AFTER_SYNC --rpl-semi-sync-master-timeout=3600000
  wait_until_ready "mariadb-$1" 60 mariadb_root "$1" -e 'SELECT 1'
}

# HAProxy's user has no password and no rights: its check reads one variable.
replication_users() {
  cat <<END
CREATE USER IF NOT EXISTS 'replica'@'127.0.0.1';
ALTER USER 'replica'@'127.0.0.1' IDENTIFIED BY '$(secret replica)';
GRANT REPLICATION SLAVE ON *.* TO 'replica'@'127.0.0.1';
CREATE USER IF NOT EXISTS 'haproxy'@'127.0.0.1';
END
}

# follow REPLICA PRIMARY: makes one the replica of the other. If REPLICA has data that PRIMARY lacks, as a former primary
# may, it is made anew from PRIMARY's binary log, which goes back to the first day.
follow() {
  ! follows "$@" || return 0
  point_replica "$@"
  local tenth
  for ((tenth = 0; tenth < 100; tenth++)); do
    ! follows "$@" || return 0
    sleep 0.1
  done
  note "mariadb-$1 cannot follow mariadb-$2 with the data that it has: making it anew"
  stop_server "mariadb-$1"
  rm -rf "$DATA/mysql-$1"
  run_replicated "$1"
  point_replica "$@"
  wait_until_ready "mariadb-$1" 60 follows "$@"
}

point_replica() {
  mariadb_root "$1" <<END
STOP SLAVE;
SET GLOBAL read_only=1, GLOBAL rpl_semi_sync_master_enabled=0, GLOBAL gtid_slave_pos=@@GLOBAL.gtid_binlog_pos;
CHANGE MASTER TO MASTER_HOST='127.0.0.1', MASTER_PORT=${PORT_OF[mariadb-$2]}, MASTER_USER='replica',
  MASTER_PASSWORD='$(secret replica)', MASTER_CONNECT_RETRY=1, MASTER_USE_GTID=slave_pos;
START SLAVE;
END
}

# follows REPLICA PRIMARY
follows() {
  local status line
  status=$(mariadb_root "$1" -e 'SHOW SLAVE STATUS\G')
  for line in "Master_Port: ${PORT_OF[mariadb-$2]}" "Slave_IO_Running: Yes" "Slave_SQL_Running: Yes"; do
    grep -q "$line$" <<<"$status" || return
  done
}

# commits_wait NUMBER: do this server's commits wait for its replica?
commits_wait() {
  [[ $(mariadb_root "$1" -N -e "SHOW STATUS WHERE Variable_name IN
    ('Rpl_semi_sync_master_status', 'Rpl_semi_sync_master_clients') AND Value IN ('ON', '1')" | wc -l) == 2 ]]
}

start_haproxy() {
  mkdir -p "$DATA/haproxy"
  sed -e "s/\${DB_LISTEN}/127.0.0.1:${PORT_OF[haproxy]}/" -e "s/\${DB_ONE}/127.0.0.1:${PORT_OF[mariadb-1]}/" \
    -e "s/\${DB_TWO}/127.0.0.1:${PORT_OF[mariadb-2]}/" deploy/haproxy-database.cfg >"$DATA/haproxy/haproxy.cfg"
  ensure_running haproxy "$(<"$DATA/haproxy/haproxy.cfg")" haproxy -db -f "$DATA/haproxy/haproxy.cfg"
  wait_until_ready haproxy 30 mariadb_answers haproxy
}
