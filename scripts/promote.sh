# shellcheck shell=bash
# ./dev up --promote: makes the replica of a replicated database its primary, as an operator or a failover manager would.

promote() {
  local old new position
  take_stack
  [[ $DATABASE_KIND == replicated ]] || die 2 "the stack's database has no replica: ./dev up --database replicated"
  old=$(primary) new=$((3 - old))
  running "mariadb-$new" || die 1 "mariadb-$new, the replica, does not run. Start it with: ./dev up"
  if running "mariadb-$old"; then
    # A planned switch: returns when the commits under way are done.
    mariadb_root "$old" -e 'SET GLOBAL read_only=1'
    position=$(mariadb_root "$old" -N -e 'SELECT @@gtid_binlog_pos')
  else
    position=$(mariadb_root "$new" -e 'SHOW SLAVE STATUS\G' | sed -n 's/ *Gtid_IO_Pos: //p')
  fi
  if [[ $(mariadb_root "$new" -N -e "SELECT MASTER_GTID_WAIT('$position', 30)") != 0 ]]; then
    ! running "mariadb-$old" || mariadb_root "$old" -e 'SET GLOBAL read_only=0'
    die 1 "mariadb-$new has not applied what mariadb-$old committed, within 30 s: see ./dev logs mariadb-$new"
  fi
  mariadb_root "$new" -e 'STOP SLAVE; RESET SLAVE ALL; SET GLOBAL read_only=0'
  echo "$new" >"$DATA/mysql-primary"
  say "mariadb-$new is the primary"
  if running "mariadb-$old"; then
    follow "$old" "$new"
    mariadb_root "$new" -e 'SET GLOBAL rpl_semi_sync_master_enabled=1'
    say "mariadb-$old is its replica"
  else
    note "mariadb-$old does not run: commits wait for no replica, until ./dev up starts it as one"
  fi
}
