# shellcheck shell=bash
# Packages and tools that must be on the machine: found, installed with apt-get, or named.

# The -core packages hold MariaDB's programs without its system service.
declare -A PACKAGES=(
  [redis-server]=redis-server [redis-cli]=redis-tools [nginx]=nginx [curl]=curl
  [mariadbd]=mariadb-server-core [mariadb-install-db]=mariadb-server-core
  [mariadb]=mariadb-client-core [cc]="gcc libc6-dev"
)

# missing_packages: a name a line.
missing_packages() {
  local tool
  for tool in "${!PACKAGES[@]}"; do
    command -v "$tool" >/dev/null || tr ' ' '\n' <<<"${PACKAGES[$tool]}"
  done | sort -u
}

# all_prerequisites: those of a replicated database too.
all_prerequisites() {
  PACKAGES+=([haproxy]=haproxy)
  prerequisites
}

# prerequisites: installs the missing packages; ends the script where it cannot, or where cargo is too old.
prerequisites() {
  [[ $DATABASE_KIND != replicated ]] || PACKAGES+=([haproxy]=haproxy)
  [[ $(uname -s) == Linux ]] ||
    die 2 "this script needs Linux; elsewhere use: docker compose up --build -d --wait"
  local packages=()
  mapfile -t packages < <(missing_packages)
  if ((${#packages[@]})); then
    install_packages "${packages[@]}"
    hash -r
    mapfile -t packages < <(missing_packages)
    ((${#packages[@]} == 0)) || die 2 "still missing after installing: ${packages[*]}"
  fi

  # Not a Debian package: those of current Debian releases are too old for this workspace.
  local wanted found
  wanted=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' Cargo.toml)
  found=$({ cargo --version 2>/dev/null || true; } | awk '{print $2}')
  [[ -n $found && $(printf '%s\n' "$wanted" "$found" | sort -V | head -n 1) == "$wanted" ]] ||
    die 2 "cargo $wanted or newer is needed, found ${found:-none}. To install it:" \
      "curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal" \
      "(with rustup already there: rustup update stable)"
}

# install_packages PACKAGE...: with apt-get as root or by sudo; their services stay off.
install_packages() {
  local by=()
  ((EUID == 0)) || by=(sudo)
  if ! command -v apt-get >/dev/null; then
    die 2 "this machine lacks: $*" "Those are Debian's names of the packages; install them and try again."
  elif ((EUID)) && ! sudo -n true 2>/dev/null; then
    die 2 "these packages are missing: $*. Install them with this line, then try again:" \
      "sudo apt-get update && sudo apt-get install -y --no-install-recommends $*" \
      "(Debian also starts the services of some; ./dev does not use those, and they can be turned off.)"
  fi
  say "installing $*"
  (
    # Debian starts a service as soon as its package is installed, unless this file forbids it.
    policy=/usr/sbin/policy-rc.d
    if [[ ! -e $policy ]]; then
      note "their services stay off: $policy says so for as long as the installation lasts"
      trap '"${by[@]}" rm -f "$policy"' EXIT
      trap 'exit 130' INT TERM HUP
      printf '#!/bin/sh\n# Made by ./dev, which removes it when its packages are installed.\nexit 101\n' |
        "${by[@]}" tee "$policy" >/dev/null
      "${by[@]}" chmod 755 "$policy"
    fi
    # Their progress would hide ours; what goes wrong is on the standard error.
    "${by[@]}" apt-get update -qq >/dev/null
    "${by[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -yqq --no-install-recommends \
      -o DPkg::Lock::Timeout=300 "$@" >/dev/null
  )
  # Nor may they start at the next boot: they were not here before, and we run our own.
  local service
  for service in redis-server nginx haproxy prometheus; do
    [[ " $* " != *" $service "* ]] || "${by[@]}" update-rc.d "$service" disable ||
      note "$service may start as a service at the next boot"
  done
}
