# shellcheck shell=bash
# ./dev demo: the stack, a sale on every strategy on one instance and on several, and how to buy a voucher by hand.

demo() {
  local status=0 write=""
  stack_flags "$@"
  known_flags demo --write -- "${REST[@]}"
  ((${#REST[@]} == 0)) || write=1
  take_stack
  ((INSTANCES > 1)) || die 2 "the demo shows what differs between one instance and several: --instances 2 or more."
  up
  say "the ladder: every strategy on one instance, then on $INSTANCES"
  (export_settings && exec "$LOADTEST" ladder --kill-command "$(kill_command)") |
    tee -i "$DATA/log/demo.log" || status=$?
  how_to_buy
  say "the shop: $HTTP/     the lab, which shows why: $(lab_link)     the API: $HTTP/docs/"
  if ((status)); then
    say "the ladder FAILED (status $status): see above"
    [[ -z $write ]] || say "nothing was written"
  elif [[ -n $write ]]; then
    sed '/./,$!d' "$DATA/log/demo.log" >docs/demo.txt
    say "written into docs/demo.txt"
  fi
  say "the stack runs on until: ./dev down"
  return "$status"
}

how_to_buy() {
  local text
  text=$(cat <<'END'

How to buy a voucher by hand, from this folder:

  eval "$(./dev env)"
  curl -s -X POST "$TARGETS/api/user/code?phone=13800138000"
  CODE=$(REDIS_CLIENT GET login:code:13800138000)   # also in: ./dev logs
  TOKEN=$(curl -s "$TARGETS/api/user/login" -H 'content-type: application/json' \
    -d "{\"phone\":\"13800138000\",\"code\":\"$CODE\"}" | sed 's/.*"data":"\([0-9a-f]*\)".*/\1/')
  VOUCHER=$(curl -s "$TARGETS/api/voucher/seckill" -H "x-admin-token: $ADMIN_TOKEN" \
    -H 'content-type: application/json' -d '{"shopId":1,"title":"100 for 80","payValue":8000,
      "actualValue":10000,"stock":10,"beginTime":"2024-01-01T00:00:00","endTime":"2037-12-31T00:00:00"}' |
    sed 's/.*"data":\([0-9]*\).*/\1/')
  curl -s -X POST "$TARGETS/api/voucher-order/seckill/$VOUCHER" -H "authorization: $TOKEN"; echo
  curl -s "$TARGETS/api/voucher-order/of/me" -H "authorization: $TOKEN"; echo

END
  )
  echo "${text/REDIS_CLIENT/$(redis_client)}"
}
