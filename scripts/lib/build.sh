# shellcheck shell=bash
# What is built, with which cargo profile, and where the binaries are. The first four settings decide.

PROFILE=${SECKILL_PROFILE:-local}               # of `up`, `demo`, `load` and `chaos`
BENCH_PROFILE=${SECKILL_BENCH_PROFILE:-release} # of `bench`
TEST_PROFILE=${SECKILL_TEST_PROFILE:-dev}       # of `test`

# From its binary `./dev chaos` rolls to the present one: a commit that this checkout may lack.
OLDER_COMMIT=${SECKILL_OLDER_COMMIT:-7cf7ae95d5c4}

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
BENCH=$(binary "$BENCH_PROFILE" bench)

# build PROFILE PACKAGE|FLAG...: without the DATABASE_URL of the caller's shell, so that no build depends on a server.
build() {
  local profile=$1
  shift
  local args=("$@") at
  for at in "${!args[@]}"; do [[ ${args[at]} == -* ]] || args[at]=--package=${args[at]}; done
  env -u DATABASE_URL cargo build --profile "$profile" "${args[@]}" 9<&-
}
