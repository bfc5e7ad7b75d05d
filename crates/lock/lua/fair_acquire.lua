-- Acquire the fair lock, re-enter it, or join its queue.
--
-- KEYS, ARGV[1..4]  see notify.lua and fair_queue.lua
-- ARGV[5]  lease in milliseconds
-- ARGV[6]  owner
-- ARGV[7]  hold count after this acquire, absolute
-- ARGV[8]  how long a waiter counts as alive after this, in ms; 0: do not join the queue. If another
--          call of this owner has asked for longer, that holds
-- The last key and argument are those of generation.lua.
--
-- Returns nil when the owner holds the lock, else in how many ms to try again: the key's PTTL (-1: no
-- expiry; -2: no key). Waiters behind others try a little later, one after the other.
local lease, owner, depth, alive_for = ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])
-- How much later a waiter tries than the one before it, in ms: at the end of a lease, and while the
-- first waiter has been notified and has not come yet.
local BEHIND, BEHIND_FREE = 20, 250
-- How long after the end of a lease Redisson's waiter is told to wake, in ms.
local CLOCKS = 1000
if outdated() then
  return redis.call('PTTL', KEYS[1])
end
local pruned = prune(owner)

-- Tell the waiter that is first now how long the lease is, unless it will see that by itself. A waiter
-- of this crate tries well before it counts as dead, and then sleeps until the end of the lease.
local function announce()
  local next = redis.call('LINDEX', KEYS[2], 0)
  if not next then
    return
  end
  local alive_until = redis.call('ZSCORE', KEYS[4], next)
  if alive_until and now + tonumber(lease) >= tonumber(alive_until) then
    return
  end
  if not alive_until then
    -- Redisson's waiter sleeps until this time, less its timeout, by its own clock. Should the lease not
    -- have ended by then, it computes a negative pause, which is one without limit. A lease ends later
    -- than `now` says when the server is interrupted before PEXPIRE, and for a clock that is ahead.
    redis.call('ZADD', KEYS[3], now + tonumber(lease) + CLOCKS + tonumber(ARGV[4]), next)
  end
  notify_first()
end

if redis.call('HEXISTS', KEYS[1], owner) == 1 then
  redis.call('HSET', KEYS[1], owner, depth)
  redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), tonumber(lease)))
  return nil
end
if depth ~= '1' then
  return redis.call('PTTL', KEYS[1])
end

local free = redis.call('EXISTS', KEYS[1]) == 0
local first = redis.call('LINDEX', KEYS[2], 0)
if free and (not first or first == owner) then
  if first then
    move_up(redis.call('LRANGE', KEYS[2], 0, -1), 2)
    leave(owner)
  end
  redis.call('HSET', KEYS[1], owner, 1)
  redis.call('PEXPIRE', KEYS[1], lease)
  if first then
    announce()
  end
  return nil
end

local position = 0
if alive_for > 0 then
  local ttl = math.max(0, redis.call('PTTL', KEYS[1]))
  local allowance = tonumber(ARGV[4])
  local queue = redis.call('LRANGE', KEYS[2], 0, -1)
  for i = 1, #queue do
    if queue[i] == owner then
      position = i
    end
  end
  if position == 0 then
    local last = queue[#queue]
    local before = tonumber(last and redis.call('ZSCORE', KEYS[3], last) or now + ttl)
    redis.call('RPUSH', KEYS[2], owner)
    redis.call('ZADD', KEYS[3], before + allowance, owner)
    position = #queue + 1
  end
  -- Redisson counts from when the queue was created, so that a waiter in a long-lived queue seems dead
  -- in the end. Ours stay alive as long as they repeat this command.
  local least = now + ttl + allowance * position
  local known = tonumber(redis.call('ZSCORE', KEYS[3], owner) or 0)
  if known < least then
    known = least
    redis.call('ZADD', KEYS[3], known, owner)
  end
  local alive_until = math.max(now + alive_for, tonumber(redis.call('ZSCORE', KEYS[4], owner) or 0))
  redis.call('ZADD', KEYS[4], alive_until, owner)
  -- KEYS[4] has to outlive the entries of our waiters in KEYS[3]. Otherwise waiters of ours that died
  -- together would count as Redisson's, and block the queue for five minutes each.
  local keep = math.ceil(known - now) + alive_until - now
  redis.call('PEXPIRE', KEYS[4], math.max(redis.call('PTTL', KEYS[4]), keep))
  first = redis.call('LINDEX', KEYS[2], 0)
end
local behind = alive_for > 0 and first ~= owner
if free and (pruned or behind) then
  -- Nobody else would notify the first waiter: its message was lost, or the holder died.
  notify_first()
end
local left = redis.call('PTTL', KEYS[1])
if not behind or left == -1 then
  return left
end
if left < 0 then
  return BEHIND_FREE * (position - 1)
end
return left + BEHIND * (position - 1)
