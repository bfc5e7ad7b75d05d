# shellcheck shell=bash
# What is built, with which cargo profile, and where the binaries are. The first three settings decide.

PROFILE=${SECKILL_PROFILE:-dev}                 # of everything but `bench`
BENCH_PROFILE=${SECKILL_BENCH_PROFILE:-release} # of `bench`

# Exported, so that cargo puts the binaries where we look for them, whatever its configuration.
export CARGO_TARGET_DIR=${CARGO_TARGET_DIR:-$ROOT/target}

# binary PROFILE NAME: the path of a binary; cargo calls the folder of its profile `dev` debug.
binary() {
  local folder=$1
  [[ $1 != dev ]] || folder=debug
  printf %s "$CARGO_TARGET_DIR/$folder/$2"
}

SECKILL=$(binary "$PROFILE" seckill)
LOADTEST=$(binary "$PROFILE" loadtest)
BENCH=$(binary "$BENCH_PROFILE" loadtest)

# Free megabytes that a first build and the stack's data need at least; and those of a later build.
FIRST_BUILD=3000 LATER_BUILD=500

# enough_space: ends the script where the disk has too little room for a build and the servers' data. Compilers and databases
# would fail as well, with a message that says less.
enough_space() {
  local folder needed=$FIRST_BUILD free
  [[ ! -x $SECKILL && ! -x $BENCH ]] || needed=$LATER_BUILD
  for folder in "$CARGO_TARGET_DIR" "$DATA"; do
    while [[ ! -d $folder ]]; do folder=${folder%/*}; done
    free=$(df -Pm "${folder:-/}" | awk 'NR == 2 { print $4 }')
    ((free >= needed)) || die 2 "the disk of ${folder:-/} has $free MB free; about $needed MB are needed." \
      "Make room, or build on another disk: CARGO_TARGET_DIR=/another/folder ./dev …"
  done
}

# build_programs: the service and the load tool. With --workspace and a test, cargo chooses the features of dependencies as
# for the tests, which then need not compile them again.
build_programs() {
  build "$PROFILE" --workspace --bin=seckill --bin=loadtest --test=command_line
}

# build PROFILE PACKAGE|FLAG...: without the DATABASE_URL of the caller's shell, so that no build depends on a server.
build() {
  local profile=$1
  shift
  local args=("$@") at
  enough_space
  for at in "${!args[@]}"; do [[ ${args[at]} == -* ]] || args[at]=--package=${args[at]}; done
  env -u DATABASE_URL cargo build --profile "$profile" "${args[@]}" 9<&-
}
