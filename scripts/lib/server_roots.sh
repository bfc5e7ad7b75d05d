# shellcheck shell=bash
# Servers of other Debian suites, each unpacked into a folder of its own: nothing is installed, and no root is needed.
#
# apt-get resolves and checks the packages against an empty list of installed ones, so that they come with all their
# libraries, the C library too. A wrapper in the folder's bin/ starts a program by that C library's loader; with bin/
# first in PATH, whatever starts `redis-server` or `mariadbd` gets this one.

SERVER_ROOTS=${SECKILL_SERVERS:-$DATA/servers}
[[ $SERVER_ROOTS == /* ]] || SERVER_ROOTS=$CALLER_DIR/$SERVER_ROOTS

declare -A SERVER_PACKAGES=(
  [redis]="redis-server redis-tools" [valkey]="valkey-server valkey-tools"
  [mariadb]="mariadb-server-core mariadb-client-core" [mysql]="mysql-server-core"
)
# The programs that get a wrapper; Valkey's under the names of Redis too, as its own compatibility package has them.
declare -A SERVER_PROGRAMS=(
  [redis]="redis-server redis-sentinel=redis-server redis-cli"
  [valkey]="valkey-server valkey-cli redis-server=valkey-server redis-sentinel=valkey-server redis-cli=valkey-cli"
  [mariadb]="mariadbd mariadb my_print_defaults mariadb-install-db" [mysql]="mysqld"
)

# server_root NAME: its folder; ends the script where NAME is no server.
server_root() {
  [[ $1 == oceanbase ]] ||
    [[ $1 =~ ^([a-z]+)-[a-z][a-z0-9-]*$ && -n ${SERVER_PACKAGES[${BASH_REMATCH[1]}]:-} ]] ||
    die 2 "'$1' is no server. A server is oceanbase, or PRODUCT-SUITE, such as redis-trixie." \
      "Products: ${!SERVER_PACKAGES[*]}; the suite is one of Debian's."
  printf %s "$SERVER_ROOTS/$1"
}

# get_server NAME: unpacks it, unless that was done. What is there is kept: remove the folder to get a newer one.
get_server() {
  local product=${1%%-*} suite=${1#*-} folder archive
  folder=$(server_root "$1")
  mkdir -p "$SERVER_ROOTS"
  exec 7<"$SERVER_ROOTS"
  flock 7
  if [[ $1 == oceanbase ]] && ! cmp -s scripts/lib/oceanbase.txt "$folder/package.txt"; then
    unpack_oceanbase "$folder"
  elif [[ $1 != oceanbase && ! -s $folder/version ]]; then
    type -P apt-get dpkg-deb >/dev/null || die 2 "this needs Debian's apt-get and dpkg-deb."
    say "getting $1: ${SERVER_PACKAGES[$product]}"
    rm -rf "$folder"
    mkdir -p "$folder/"{root,bin}
    # shellcheck disable=SC2086 # several packages
    download_packages "$suite" "$folder/packages" ${SERVER_PACKAGES[$product]}
    for archive in "$folder"/packages/archives/*.deb; do dpkg-deb -x "$archive" "$folder/root"; done
    rm -rf "$folder/packages"
    wrap_programs "$folder" "$product"
    PATH=$folder/bin:$PATH server_version "$product" >"$folder/version.new"
    mv "$folder/version.new" "$folder/version"
  fi
  exec 7<&-
}

# unpack_oceanbase FOLDER: its server is in a Python package. The wrapper in bin/ binds it to 127.0.0.1 and turns its
# telemetry off.
unpack_oceanbase() {
  local folder=$1
  python3 -c 'import ensurepip, venv' 2>/dev/null || install_packages python3-venv
  say "getting OceanBase's engine: scripts/lib/oceanbase.txt"
  rm -rf "$folder"
  mkdir -p "$folder/bin"
  python3 -m venv "$folder/venv"
  # The Python version of the package does not matter: only the server in it is used.
  "$folder/venv/bin/pip" install -q --disable-pip-version-check --no-deps --require-hashes --target "$folder/root" \
    --only-binary=:all: --platform "manylinux_2_28_$(uname -m)" --python-version 3.11 --implementation cp \
    -r scripts/lib/oceanbase.txt
  rm -rf "$folder/venv"
  cc -O1 -shared -fPIC -o "$folder/root/loopback.so" scripts/lib/loopback.c -ldl
  cat >"$folder/bin/seekdb" <<'END'
#!/bin/sh
root=$(dirname "$(dirname "$(readlink -f "$0")")")/root
export TELEMETRY_ENABLED=false LD_LIBRARY_PATH="$root:$root/pylibseekdb:$root/pylibseekdb.libs"
export LD_PRELOAD="loopback.so${LD_PRELOAD:+:$LD_PRELOAD}"
exec "$root/pylibseekdb/seekdb" "$@"
END
  chmod 755 "$folder/bin/seekdb" "$folder/root/pylibseekdb/seekdb"
  cp scripts/lib/oceanbase.txt "$folder/package.txt"
}

# debian_mirror: SECKILL_DEBIAN_MIRROR, or where this machine's own packages come from.
debian_mirror() {
  local mirror=${SECKILL_DEBIAN_MIRROR:-}
  # shellcheck disable=SC2016 # fields that apt fills in
  [[ -n $mirror ]] || mirror=$(apt-get indextargets --format '$(LABEL) $(COMPONENT) $(REPO_URI)' |
    sed -n 's/^Debian main //p' | sort -u | head -n 1)
  [[ -n $mirror ]] ||
    die 2 "this machine's apt knows no mirror of Debian. Name one by SECKILL_DEBIAN_MIRROR, or run apt-get update."
  printf %s "$mirror"
}

# download_packages SUITE FOLDER PACKAGE...: with all that they depend on, into FOLDER/archives. The machine's own lists
# and packages are neither read nor changed; its proxy and keys are used.
download_packages() {
  local suite=$1 folder=$2 mirror keys=""
  shift 2
  mirror=$(debian_mirror)
  [[ ! -e /usr/share/keyrings/debian-archive-keyring.gpg ]] ||
    keys="[signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] "
  mkdir -p "$folder/archives/partial" "$folder/state/lists/partial" "$folder/none"
  : >"$folder/status"
  echo "deb $keys$mirror $suite main" >"$folder/sources.list"
  cat >"$folder/apt.conf" <<END
Dir::State "$folder/state";
Dir::State::status "$folder/status";
Dir::Cache "$folder";
Dir::Cache::archives "archives";
Dir::Etc::sourcelist "$folder/sources.list";
Dir::Etc::sourceparts "$folder/none";
Dir::Etc::preferences "$folder/none/preferences";
Dir::Etc::preferencesparts "$folder/none";
Dir::Log "$folder";
APT::Sandbox::User "";
APT::Install-Recommends "false";
Acquire::Languages "none";
Acquire::IndexTargets::deb::DEP-11::DefaultEnabled "false";
END
  {
    APT_CONFIG=$folder/apt.conf apt-get update -qq &&
      APT_CONFIG=$folder/apt.conf apt-get install -yqq --download-only "$@"
  } >"$folder/log" 2>&1 ||
    die 1 "apt-get could not get $* from $suite at $mirror:" "$(tail -n 8 "$folder/log")"
}

# wrap_programs FOLDER PRODUCT: writes a wrapper for each program.
wrap_programs() {
  local folder=$1 root=$1/root loader libraries entry name path start behind
  loader=$(find "$root" -name 'ld-linux-*.so.*' | head -n 1)
  [[ -n $loader ]] || die 1 "there is no loader in $root"
  libraries=$(find "$root" -path '*/lib/*' -name 'lib*.so.*' -not -path '*/share/*' -printf '%h\n' |
    sort -u | paste -sd :)
  # What the databases take for their installation: their messages and plugins, and the wrappers as programs.
  mkdir "$folder/usr"
  ln -s ../bin "$folder/usr/bin"
  ln -s ../bin "$folder/usr/sbin"
  ln -s ../root/usr/share ../root/usr/lib "$folder/usr/"
  for entry in ${SERVER_PROGRAMS[$2]}; do
    name=${entry%=*}
    path=$(find "$root/usr" -path '*bin/*' -name "${entry#*=}" | head -n 1)
    [[ -n $path ]] || die 1 "there is no program ${entry#*=} in $root"
    # shellcheck disable=SC2016 # for the wrapper
    if [[ $(head -c 2 "$path") == '#!' ]]; then start='"%s"'
    else start='"'$loader'" --argv0 "$0" --library-path "'$libraries'" "%s"'; fi
    [[ $name == @(mariadbd|mysqld|mariadb-install-db) ]] && behind=" \"--basedir=$folder/usr\"" || behind=""
    # shellcheck disable=SC2059 # the format is ours
    printf "#!/bin/sh\nexec $start "'"$@"%s\n' "$path" "$behind" >"$folder/bin/$name"
    chmod 755 "$folder/bin/$name"
  done
}

# server_version PRODUCT: such as "Valkey 8.1.1", as reported by the server that is first in PATH.
server_version() {
  local label program found
  case $1 in
    redis) label=Redis program=redis-server ;;
    valkey) label=Valkey program=valkey-server ;;
    mariadb) label=MariaDB program=mariadbd ;;
    mysql) label=MySQL program=mysqld ;;
    oceanbase) label="OceanBase seekdb" program=seekdb ;;
  esac
  found=$("$program" --version 2>&1) || die 1 "$program does not run:" "$found"
  printf '%s %s\n' "$label" "$(grep -oE '[0-9]+\.[0-9]+\.[0-9]+' <<<"$found" | head -n 1)"
}
