-- A flash sale under wrk: every request is a purchase by the next buyer of a token file.
--
--   TOKENS_FILE  session tokens, one per line (`seckill seed --tokens N --tokens-file F`)
--   VOUCHER_ID   the sale's voucher (`loadtest publish` prints one)
--   API_PREFIX   optional path before every route, such as /api
--
-- Usage: TOKENS_FILE=… VOUCHER_ID=… wrk -t2 -c256 -d10s -s loadtest/wrk/seckill.lua http://127.0.0.1:8080
--
-- wrk gives each thread its own Lua state. Every thread cycles through the whole file from another start, so that a
-- buyer repeats only after many requests. wrk does not check the orders: `seckill audit --voucher-id $VOUCHER_ID` does.

local threads = {}

-- Runs once per thread, in wrk's own Lua state.
function setup(thread)
  thread:set("offset", #threads)
  table.insert(threads, thread)
end

local function fail(text)
  io.stderr:write("seckill.lua: " .. text .. "\n")
  os.exit(2)
end

-- Runs once per thread, in the thread's Lua state. What `done` reads must be a global.
function init(args)
  local file = os.getenv("TOKENS_FILE") or fail("set TOKENS_FILE to a file of session tokens")
  local voucher = os.getenv("VOUCHER_ID") or fail("set VOUCHER_ID to the voucher of a sale")
  if not voucher:match("^%d+$") then fail("VOUCHER_ID is not a number: " .. voucher) end

  local lines, message = io.open(file, "r")
  if not lines then fail(message) end
  tokens = {}
  for line in lines:lines() do
    local token = line:match("^%s*(%x+)%s*$")
    if token then table.insert(tokens, token) end
  end
  lines:close()
  if #tokens == 0 then fail(file .. " holds no token") end

  path = (os.getenv("API_PREFIX") or "") .. "/voucher-order/seckill/" .. voucher
  -- Multiples of the golden ratio are evenly spread over the file for any number of threads.
  next_token = math.floor((offset * 0.6180339887 % 1) * #tokens)
  outcomes = {}
end

function request()
  next_token = next_token % #tokens + 1
  return wrk.format("POST", path, { ["authorization"] = tokens[next_token] })
end

function response(status, headers, body)
  local outcome
  if body:find('"success":true', 1, true) then
    outcome = body:match('"code":"([%u_]+)"') or "ORDERED"
  else
    outcome = body:match('"code":"([%u_]+)"') or ("HTTP_" .. status)
  end
  outcomes[outcome] = (outcomes[outcome] or 0) + 1
end

-- Runs once, in wrk's own Lua state. Latencies are in microseconds.
function done(summary, latency, requests)
  local total, names = {}, {}
  for _, thread in ipairs(threads) do
    for outcome, count in pairs(thread:get("outcomes")) do
      if not total[outcome] then table.insert(names, outcome) end
      total[outcome] = (total[outcome] or 0) + count
    end
  end
  table.sort(names)
  local seconds = summary.duration / 1e6
  io.write("\nOutcomes (orders a second are the line ORDERED):\n")
  for _, outcome in ipairs(names) do
    io.write(string.format("  %-20s %10d  %10.1f/s\n", outcome, total[outcome], total[outcome] / seconds))
  end
  io.write(string.format("Latency ms: p50 %.2f  p90 %.2f  p99 %.2f  p99.9 %.2f  max %.2f\n",
    latency:percentile(50) / 1e3, latency:percentile(90) / 1e3, latency:percentile(99) / 1e3,
    latency:percentile(99.9) / 1e3, latency.max / 1e3))
  local errors = summary.errors
  io.write(string.format("Errors: connect %d, read %d, write %d, time-out %d\n",
    errors.connect, errors.read, errors.write, errors.timeout))
end
