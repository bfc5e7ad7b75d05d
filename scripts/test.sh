# shellcheck shell=bash
# ./dev test: its help, and what all kinds of tests share.

test_usage() {
  cat <<'END'
usage: ./dev test [PACKAGE] [NAME] [FLAGS] [-- TEST FLAGS]
       ./dev test KIND [ARGS]

Without arguments: the tests of the workspace but for the slow ones, on a MariaDB and on Redis servers
of its own.

  PACKAGE   only this package, by its name, its folder or that folder's name (see below)
  NAME      only tests whose path contains it, such as a test's name, its module or its file:
            only the packages and test binaries that have one are built
  FLAGS     go to `cargo test`, such as --release, --locked or -p; those after -- to the test
            binaries, such as --nocapture, --exact or --test-threads 1

KIND is one of these:
  slow      the tests that need real time (leases that end, fail-overs, chaos), in the modules named
            `slow`: one at a time, because a busy machine would move their moments; ARGS are FLAGS
  browser   the pages in Chromium, against the stack; ARGS go to `python -m unittest`;
            --screenshots also makes the pictures in docs/
  api       thousands of generated requests, held against docs/openapi.json; --help for more
  kubernetes  the manifests of deploy/kubernetes/, held against Kubernetes' schemas and the
            binary's own settings; the alert rules of deploy/prometheus/, state by state;
            ARGS go to `python -m unittest`
  interop   our locks against Redisson's, two processes of each; needs Java and Maven; --help for more
  compat    the tests that depend on a server, on each version that users run; --help for more
  stack     the servers of ./dev up in all kinds, on ports and data of their own: failovers,
            restarts and switches from kind to kind; in about a minute, without a build
  release   an archive of ./dev release, unpacked into a new folder: its programs sell vouchers on
            servers of their own; ARGS is the archive, by default one of the tests' build
  compose   docker-compose.yml on this machine's Docker, in a project of its own; --help for more

Examples:
  ./dev test a_second_order             tests with that in their name, wherever they are
  ./dev test architecture               the module tests/it/architecture.rs
  ./dev test lock                       all tests of the package in crates/lock/; needs no database
  ./dev test lock fair                  those of them with `fair` in their path
  ./dev test purchase -- --nocapture    with what they print
  ./dev test browser test_shop          one file of tests/browser

END
  echo "Packages (folder: name):"
  local folder
  for folder in $(members); do printf '  %-20s %s\n' "$folder" "$(package_name "$folder")"; done
}

run_tests() {
  if [[ ${1:-} == @(-h|--help|help) ]]; then
    test_usage
    return
  fi
  case ${1:-} in
    compat | compose | interop) "test_$1" "${@:2}"; return ;;
  esac
  case ${1:-} in
    stack) (($# == 1)) || die 2 "test stack takes no arguments, not '$2'." ;;
    api)
      if [[ " ${*:2} " == *@( -h | --help )* ]]; then
        test_api_usage
        return
      fi
      known_flags "test api" "${API_FLAGS[@]}" -- "${@:2}"
      lock # it starts the stack's database
      ;;
    browser) lock ;; # it starts the stack
    kubernetes | release) ;;
    *) known_test_flags "$@" ;;
  esac
  all_prerequisites
  prepare
  case ${1:-} in
    api) test_api "${@:2}" ;;
    browser) test_browser "${@:2}" ;;
    kubernetes) test_kubernetes "${@:2}" ;;
    release) test_release "${@:2}" ;;
    stack) test_stack ;;
    *) fake_clocks; node_js; test_cargo "$@" ;;
  esac
}

# fake_clocks: libfaketime, for the tests that step a server's clock.
fake_clocks() {
  command -v faketime >/dev/null || (install_packages faketime) ||
    say "without the package faketime, the tests that step a server's clock fail"
}

# node_js: runs the model of the page /learn in the tests of crates/workload/.
node_js() {
  command -v node >/dev/null || (install_packages nodejs) ||
    say "without the package nodejs, the tests of the model behind /learn fail"
}

# without_settings COMMAND...: settings of a developer's shell (./dev env) must not leak into the servers under test.
without_settings() {
  env -u DATABASE_URL -u REDIS_URL -u ADMIN_TOKEN -u SECKILL_LAB -u BIND_ADDR -u TIME_ZONE \
    -u LOG_FORMAT -u RUST_LOG -u TARGETS -u NODES -u NODE_NAME "$@"
}
