-- Common part of the fair lock's scripts: joined in front of them, after notify.lua.
--
-- KEYS[1]  the lock's name, a hash as in acquire.lua
-- KEYS[2]  the queue: a list of the owners that wait, in order
-- KEYS[3]  a sorted set: until when (Unix, ms) each waiter counts as alive for Redisson's clients
-- KEYS[4]  a sorted set of this crate: until when (Unix, ms) each of *its* waiters counts as alive.
--          Redisson's times add up along the queue, 5 min for each position; with this a waiter that
--          died is noticed within one lease
-- ARGV[3]  prefix of the channels: each waiter has its own, "<prefix>:<owner>"
-- ARGV[4]  Redisson's wait timeout for each position, in ms
--
-- All times are by the server's clock.
local clock = redis.call('TIME')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local function leave(owner)
  redis.call('LREM', KEYS[2], 0, owner)
  redis.call('ZREM', KEYS[3], owner)
  redis.call('ZREM', KEYS[4], owner)
end

-- Remove dead waiters; true if there were any. `me` is alive, however late it is.
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

-- Move `owners` from index `from` on one position up in Redisson's times.
local function move_up(owners, from)
  for i = from, #owners do
    if redis.call('ZSCORE', KEYS[3], owners[i]) then
      redis.call('ZINCRBY', KEYS[3], -tonumber(ARGV[4]), owners[i])
    end
  end
end

-- Notify the first waiter. If it is Redisson's, also the first of this crate's: Redisson does not tell
-- the queue that it has acquired the lock, and its second waiter sleeps for minutes, so one of ours
-- has to watch the lease and to notify whoever is first when it ends.
local function notify_first()
  local first = redis.call('LINDEX', KEYS[2], 0)
  if not first then
    return
  end
  notify(':' .. first)
  if redis.call('ZSCORE', KEYS[4], first) then
    return
  end
  for _, owner in ipairs(redis.call('LRANGE', KEYS[2], 1, -1)) do
    if redis.call('ZSCORE', KEYS[4], owner) then
      notify(':' .. owner)
      return
    end
  end
end
