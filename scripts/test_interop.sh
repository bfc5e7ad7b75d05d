# shellcheck shell=bash
# ./dev test interop: our locks against Redisson's, two processes of each. It starts and ends a Redis of its own; the
# stack is neither needed nor touched.

test_interop() {
  local tool missing=()
  for tool in java javac mvn; do command -v "$tool" >/dev/null || missing+=("$tool"); done
  ((${#missing[@]} == 0)) || die 2 "interop needs a JDK (11 or newer) and Maven; missing: ${missing[*]}. To install them:" \
    "sudo apt-get install -y --no-install-recommends openjdk-17-jdk-headless maven" \
    "(or default-jdk-headless; elsewhere: https://adoptium.net and https://maven.apache.org)"
  prerequisites
  env -u DATABASE_URL cargo run -q -p seckill-interop -- "$@"
}
