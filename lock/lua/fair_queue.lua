-- Prelude of the fair lock's scripts, after notify.lua. It is put before them, not run by itself.
--
-- KEYS[1]  the lock's name, a hash as in acquire.lua
-- KEYS[2]  a list: the owners that wait, first come first
-- KEYS[3]  a sorted set: until when (in ms) Redisson's clients believe each of them to be alive
-- KEYS[4]  a sorted set of our own: until when (in ms) each of *our* waiters is believed to be
--          alive unless it shows itself again. Redisson's times add up along the queue, 5 min for
--          each place; with this a waiter that died is noticed within one lease
-- ARGV[3]  what the channels begin with: each waiter has its own, "<prefix>:<owner>"
-- ARGV[4]  what Redisson allows a waiter, in ms
--
-- All times are the server's.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function leave(owner)
  redis.call('LREM', KEYS[2], 0, owner)
  redis.call('ZREM', KEYS[3], owner)
  redis.call('ZREM', KEYS[4], owner)
end

-- Drop the waiters that are dead; true if there were any. `me` is alive, however late it is.
local function prune(me)
  local pruned = false
  for _, owner in ipairs(redis.call('ZRANGEBYSCORE', KEYS[4], '-inf', now)) do
    if owner ~= me then
      leave(owner)
      pruned = true
    end
  end
  while true do
    local first = redis.call('LINDEX', KEYS[2], 0)
    if not first or first == me or redis.call('ZSCORE', KEYS[4], first) then
      return pruned
    end
    local alive_until = redis.call('ZSCORE', KEYS[3], first)
    if alive_until and tonumber(alive_until) > now then
      return pruned
    end
    leave(first)
    pruned = true
  end
end

-- Move everybody in `owners`, from the given place on, one place up in Redisson's times.
local function move_up(owners, from)
  for i = from, #owners do
    if redis.call('ZSCORE', KEYS[3], owners[i]) then
      redis.call('ZINCRBY', KEYS[3], -tonumber(ARGV[4]), owners[i])
    end
  end
end

-- It is the first waiter's turn: tell it.
local function notify_first()
  local first = redis.call('LINDEX', KEYS[2], 0)
  if first then
    notify(':' .. first)
  end
end

