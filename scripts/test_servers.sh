# shellcheck shell=bash
# ./dev test api, browser and kubernetes: tests from outside, written in Python.

# python_tools: the programs of tests/tools.txt, with their versions, in a Python environment under .dev/.
python_tools() {
  ! cmp -s tests/tools.txt "$DATA/venv/tools.txt" || return 0
  python3 -c 'import ensurepip, venv' 2>/dev/null || install_packages python3-venv
  say "installing the tools of tests/tools.txt into .dev/venv"
  rm -rf "$DATA/venv"
  python3 -m venv "$DATA/venv"
  "$DATA/venv/bin/pip" install -q --disable-pip-version-check -r tests/tools.txt
  cp tests/tools.txt "$DATA/venv/"
}

# The flags of tests/api/run.py that are the user's.
API_FLAGS=(--examples= --seed= --at-least=)

test_api_usage() {
  cat <<'END'
usage: ./dev test api [--examples N] [--seed N] [--at-least N]

Thousands of generated requests, valid and not, held against docs/openapi.json, in about two minutes.

  --examples N  generated requests per operation, about (150)
  --seed N      another seed generates other requests (7)
  --at-least N  fail if fewer requests were sent (5000)
END
}

# A fuzzer that reads the API's document, against an instance and a Redis of its own: only MariaDB is this checkout's.
test_api() {
  local started=0 status=0
  python_tools
  say "building; then some thousand requests, in about two minutes"
  build_programs
  lock
  running mariadb || started=1
  start_database_single
  remember_ports
  unlock
  trap : INT # which ends the tests, not the cleaning up after them
  PYTHONDONTWRITEBYTECODE=1 without_settings "$DATA/venv/bin/python" tests/api/run.py --seckill "$SECKILL" \
    --database "$(mysql_url mariadb)" --log "$DATA/log/test-api.log" "$@" || status=$?
  # A stack may use it by now.
  ((!started)) || stack_runs || stop_server mariadb
  return "$status"
}

# The manifests, against the published schemas and the binary's own settings; the alert rules, by Prometheus' own tool.
test_kubernetes() {
  python_tools
  command -v promtool >/dev/null || install_packages prometheus
  build_programs
  (cd tests/kubernetes && SECKILL=$SECKILL PYTHONDONTWRITEBYTECODE=1 "$DATA/venv/bin/python" -m unittest "$@")
}

browser_tests() { "$DATA/venv/bin/python" -m unittest "$@"; }

# In two processes that take about equally long. One has all runs of the lab, which makes one run at a time; its output is
# printed afterwards. At last the test that counts the database's queries, which nothing else may send meanwhile.
all_browser_tests() {
  local lab=(test_lab test_accessibility test_learn) others=() name status=0
  for name in test_*.py; do
    [[ " ${lab[*]} test_hot_key " == *" ${name%.py} "* ]] || others+=("${name%.py}")
  done
  browser_tests "${lab[@]}" &>"$BROWSER_OUT/lab.log" &
  browser_tests "${others[@]}" || status=$?
  wait $! || status=$?
  cat "$BROWSER_OUT/lab.log"
  browser_tests test_hot_key || status=$?
  return "$status"
}

# The pages in a real browser, against the stack. A stack that did not run before does not run afterwards.
test_browser() {
  local started=0 status=0 fonts=() pictures=""
  if [[ ${1:-} == --screenshots ]]; then pictures=1; shift; fi
  command -v chromium >/dev/null || install_packages chromium
  if [[ -n $pictures ]]; then
    # So that the pictures look the same wherever they are made.
    [[ -n $(fc-list Inter) ]] || fonts+=(fonts-inter)
    [[ -n $(fc-list :lang=zh-cn) ]] || fonts+=(fonts-wqy-microhei)
    ((${#fonts[@]} == 0)) || install_packages "${fonts[@]}"
  fi
  stack_runs || started=1
  up
  python_tools
  mkdir -p "$DATA/browser"
  (
    export_settings
    export SECKILL LOADTEST CHROMIUM=chromium BROWSER_OUT=$DATA/browser PYTHONDONTWRITEBYTECODE=1
    CHROMIUM=$(command -v chromium)
    cd tests/browser
    say "the pages in $(chromium --version 2>/dev/null)"
    { if (($#)); then browser_tests "$@"; else all_browser_tests; fi; } &&
      { [[ -z $pictures ]] || "$DATA/venv/bin/python" screenshots.py "$ROOT/docs"; }
  ) || status=$?
  ((!started)) || down
  if ((status)); then say "browser tests FAILED (status $status)"; else say "browser tests passed"; fi
  return "$status"
}
