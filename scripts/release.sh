# shellcheck shell=bash
# ./dev release: what users take, an archive and an image of the same programs. ./dev test release: sells from an archive.

PLATFORM=$(uname -m)-linux

release() {
  local optimised=1
  case $* in
    "") ;;
    --no-pgo) optimised="" ;;
    "--image "*) release_image "${*:2}"; return ;;
    *) die 2 "release takes --no-pgo, or --image ARCHIVE, not '$*'; see ./dev --help." ;;
  esac
  prerequisites
  prepare
  export CARGO_INCREMENTAL=0 # whatever the caller's shell has
  say "building (a quarter of an hour)"
  if [[ -n $optimised ]] && has_profdata; then
    build_optimised
  else
    build release --locked seckill seckill-loadtest
  fi
  rm -rf "$CARGO_TARGET_DIR/dist"
  pack "$CARGO_TARGET_DIR/dist" "${OPTIMISED:-$(binary release seckill)}" "$(binary release loadtest)"
  (test_release "$ARCHIVE")
  if docker info >/dev/null 2>&1; then
    release_image "$ARCHIVE"
  else
    note "no Docker engine answers, so there is no image; later: ./dev release --image $ARCHIVE"
  fi
  say "the archive is $ARCHIVE"
}

# has_profdata: the tool that merges the counts must be of the compiler's own LLVM. Sets PROFDATA.
has_profdata() {
  PROFDATA=$(rustc --print target-libdir)/../bin/llvm-profdata
  [[ -x $PROFDATA ]] || rustup component add llvm-tools ||
    { note "without rustup's llvm-tools the service is built without a profile of its load"; return 1; }
}

# build_optimised: the load tool, and the service twice: with counters of what it executes, which the benchmark fills, then
# by these counts. Sets OPTIMISED.
build_optimised() {
  local folder=$CARGO_TARGET_DIR/pgo
  rm -rf "$folder"
  mkdir -p "$DATA/bench"
  build release --locked seckill-loadtest
  say "building the service with counters"
  build_service "$folder" "-Cprofile-generate=$folder/counts"
  say "the benchmark, for its load; these are figures of the service with counters"
  TMPDIR=$DATA/bench "$(binary release loadtest)" bench --quick --out "$DATA/bench" --seckill "$OPTIMISED"
  "$PROFDATA" merge -o "$folder/counts.profdata" "$folder/counts"
  say "building the service by these counts"
  build_service "$folder" "-Cprofile-use=$folder/counts.profdata"
}

# build_service FOLDER FLAG: with this flag of the compiler. A named target keeps it from what runs during the build.
build_service() {
  local target
  target=$(rustc -vV | sed -n 's/^host: //p')
  RUSTFLAGS="${RUSTFLAGS:-} $2" build release --locked seckill --target="$target" --target-dir="$1"
  OPTIMISED=$1/$target/release/seckill
}

# pack FOLDER SECKILL LOADTEST: makes the archive of these programs in FOLDER, and its checksum. What is packed is the same,
# byte by byte, if the programs are: the names are sorted, the times the commit's, the owners none. Sets ARCHIVE.
pack() {
  local name folder
  name=seckill-$(release_version)-$PLATFORM
  folder=$1/$name
  say "packing $name"
  rm -rf "$folder"
  install -D -t "$folder/bin" "$2" "$3"
  git ls-files -z -- deploy 'docs/*.md' docker-compose.yml CHANGELOG.md SECURITY.md LICENSE | xargs -0 cp --parents -t "$folder"
  echo SECKILL_BINARIES=packed >"$folder/.env"
  archive_readme >"$folder/README.md"
  licences >"$folder/LICENSES-OF-CRATES.txt"
  tar --sort=name --owner=0 --group=0 --numeric-owner --mode=u=rwX,go=rX --mtime="@$(git log -1 --format=%ct)" \
    -C "$1" -c "$name" | gzip -n >"$folder.tar.gz"
  rm -r "$folder"
  ARCHIVE=$folder.tar.gz
  (cd "$1" && sha256sum "$name.tar.gz" >SHA256SUMS)
}

# release_version: that of Cargo.toml; between two releases with the commit, and `dirty` where files differ from it.
release_version() {
  local version commit
  version=$(sed -n '/^\[workspace.package\]/,/^$/s/^version = "\(.*\)"/\1/p' Cargo.toml)
  commit=$(git describe --always --dirty --tags --match "v$version")
  if [[ $commit == "v$version"* ]]; then echo "${commit#v}"; else echo "$version-$commit"; fi
}

archive_readme() {
  cat <<END
# seckill $(release_version)

A flash-sale backend and its load tool, for Linux on $(uname -m) with $(getconf GNU_LIBC_VERSION) or newer. With Docker (Compose
2.24 or newer) everything runs in containers, made from these programs:

    docker compose up --build -d --wait     # then http://127.0.0.1:8080; the lab: /lab#token=local-admin-token

Without Docker it needs a database (MariaDB, MySQL or OceanBase) and a Redis: docs/OPERATIONS.md.

    export DATABASE_URL=mysql://user:password@127.0.0.1:3306/seckill REDIS_URL=redis://127.0.0.1:6379/
    export ADMIN_TOKEN=\$(openssl rand -hex 16)
    bin/seckill migrate                     # the tables
    bin/seckill seed                        # sample shops and vouchers; optional
    bin/seckill doctor                      # what is wrong with the servers
    bin/seckill serve --bind 127.0.0.1:8081 --unlimited-clients 127.0.0.0/8   # then http://127.0.0.1:8081

A sale, and the check of every reply against every row:

    TARGETS=http://127.0.0.1:8081 bin/loadtest burst

The settings: bin/seckill serve --help. nginx, Kubernetes, Prometheus, Grafana: deploy/.
END
}

# licences: the texts of all crates in the programs, each once with the crates that it came with.
licences() {
  local crate folder text sum
  local -A crates=() texts=()
  while read -r crate; do
    for folder in "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$crate"; do
      for text in "$folder"/{LICEN[CS]E,COPYING,COPYRIGHT,NOTICE}*; do
        [[ -f $text ]] || continue
        sum=$(sha256sum <"$text" | cut -d ' ' -f 1)
        crates[$sum]+=" $crate" texts[$sum]=$text
      done
    done
  done < <(cargo tree --locked -p seckill -p seckill-loadtest -e normal --prefix none -f '{p}' |
    sed -nE '/ \(\/|^$/d; s/^([^ ]+) v([^ ]+).*/\1-\2/p' | sort -u)
  for sum in $(printf '%s\n' "${!crates[@]}" | sort); do
    printf '=====%s\n\n' "${crates[$sum]}"
    cat "${texts[$sum]}"
    echo
  done
}

# unpack ARCHIVE: into a new folder, UNPACKED; its checksum is compared where there is one beside it.
unpack() {
  local archive folder
  archive=$(cd "$CALLER_DIR" && realpath -qe -- "$1") || die 2 "there is no file '$1'."
  folder=${archive%/*}
  [[ ! -e $folder/SHA256SUMS ]] || (cd "$folder" && sha256sum --quiet --ignore-missing --check SHA256SUMS)
  UNPACKED=$DATA/unpacked
  rm -rf "$UNPACKED"
  mkdir -p "$UNPACKED"
  tar -xf "$archive" -C "$UNPACKED"
  UNPACKED=$(echo "$UNPACKED"/*)
}

# release_image ARCHIVE: its tests, then the image as seckill:VERSION.
release_image() {
  local version=${1##*/seckill-}
  version=${version%-"$PLATFORM".tar.gz}
  (test_compose "$1")
  unpack "$1"
  DOCKER_BUILDKIT=1 docker build -q -f "$UNPACKED/deploy/Dockerfile" --build-arg BINARIES=packed -t "seckill:$version" "$UNPACKED"
  say "the image is seckill:$version"
}

# test_release [ARCHIVE]: does what its README says, on servers of its own, with its own nginx.conf.
test_release() {
  local sale=(burst --buyers 100 --tries 2 --stock 40) archive=${1:-}
  (($# < 2)) || die 2 "test release takes an archive, not '$*'."
  own_stack test-release
  if [[ -z $archive ]]; then
    build_programs
    pack "$DATA/dist" "$SECKILL" "$LOADTEST"
    archive=$ARCHIVE
  fi
  unpack "$archive"
  cd "$UNPACKED"
  stack_of single single 1
  SECKILL=$UNPACKED/bin/seckill LOADTEST=$UNPACKED/bin/loadtest
  must "the tables are made" with_settings "$SECKILL" migrate
  must "the samples are inserted" with_settings "$SECKILL" seed
  start_instances
  start_nginx
  must "the shop is there" curl -fsS --noproxy '*' -o /dev/null "$HTTP/"
  must "its load tool sells vouchers" with_settings "$LOADTEST" "${sale[@]}"
  must "all of them" same 40 in_mariadb mariadb "SELECT COUNT(*) FROM tb_voucher_order"
  must "the tables are in order" with_settings "$SECKILL" audit
  cd "$ROOT"
  down --wipe
  trap - EXIT
  say "the archive's tests passed"
}

with_settings() { (export_settings && exec "$@"); }
