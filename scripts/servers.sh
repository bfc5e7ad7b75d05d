# shellcheck shell=bash
# ./dev servers: newer Redis, Valkey, MariaDB and MySQL servers, beside those of the machine.

servers_usage() {
  cat <<END
usage: ./dev servers [NAME...]
       ./dev servers --path NAME

Gets servers of other Debian suites (${USUAL_SERVERS[*]})
and prints the version and the folder of programs of each. They are unpacked, not installed.

  NAME         PRODUCT-SUITE, of ${!SERVER_PACKAGES[*]}, and any suite of Debian
  --path NAME  prints only that folder: PATH=\$(./dev servers --path redis-trixie):\$PATH ./dev test lock

  SECKILL_SERVERS        where they are kept, such as a folder that several checkouts share (.dev/servers)
  SECKILL_DEBIAN_MIRROR  where they come from (the mirror that this machine's apt uses)
END
}

servers() {
  local name only_path=""
  case ${1:-} in
    -h | --help | help) servers_usage; return ;;
    --path)
      only_path=1
      shift
      (($# == 1)) || die 2 "--path takes one name."
      ;;
  esac
  type -P apt-get dpkg-deb >/dev/null || die 2 "this needs Debian's apt-get and dpkg-deb."
  prepare
  (($#)) || set -- "${USUAL_SERVERS[@]}"
  for name; do
    get_server "$name" >&2
    if [[ -n $only_path ]]; then
      echo "$(server_root "$name")/bin"
    else
      printf '%-16s %-16s %s\n' "$name" "$(<"$(server_root "$name")/version")" "$(server_root "$name")/bin"
    fi
  done
}
