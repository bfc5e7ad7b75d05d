-- Take the fair lock, or take it once more, or queue for it.
--
-- KEYS, ARGV[1..4]  see notify.lua and fair_queue.lua
-- ARGV[5]  lease in milliseconds
-- ARGV[6]  owner
-- ARGV[7]  depth the owner will have reached, absolute
-- ARGV[8]  for how long, in ms, a waiter is believed to be alive after this; 0: do not queue
--
-- Returns nil when the owner holds the lock, else the key's PTTL (-1: no expiry; -2: no key). A
-- waiter behind others is given -1: only a message, or time to show itself again, concerns it.
local lease, owner, depth, patience = ARGV[5], ARGV[6], ARGV[7], tonumber(ARGV[8])
local pruned = prune(owner)

if redis.call('HEXISTS', KEYS[1], owner) == 1 then
  redis.call('HSET', KEYS[1], owner, depth)
  redis.call('PEXPIRE', KEYS[1], lease)
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
  return nil
end

if patience > 0 then
  local ttl = math.max(0, redis.call('PTTL', KEYS[1]))
  local allowance = tonumber(ARGV[4])
  local place = 0
  local queue = redis.call('LRANGE', KEYS[2], 0, -1)
  for i = 1, #queue do
    if queue[i] == owner then
      place = i
    end
  end
  if place == 0 then
    local last = queue[#queue]
    local before = tonumber(last and redis.call('ZSCORE', KEYS[3], last) or now + ttl)
    redis.call('RPUSH', KEYS[2], owner)
    redis.call('ZADD', KEYS[3], before + allowance, owner)
    place = #queue + 1
  end
  -- Redisson counts from when the queue began, so that a waiter in a long-lived queue looks dead in
  -- the end. Ours stay alive as long as they show themselves.
  local least = now + ttl + allowance * place
  local known = tonumber(redis.call('ZSCORE', KEYS[3], owner) or 0)
  if known < least then
    known = least
    redis.call('ZADD', KEYS[3], known, owner)
  end
  redis.call('ZADD', KEYS[4], now + patience, owner)
  -- It has to outlive what KEYS[3] says of our waiters. Else those that died together would be taken
  -- for Redisson's, and stand in the way for five minutes each.
  local keep = math.ceil(known - now) + patience
  redis.call('PEXPIRE', KEYS[4], math.max(redis.call('PTTL', KEYS[4]), keep))
  first = redis.call('LINDEX', KEYS[2], 0)
end
if pruned and free then
  -- Nobody else would tell it before its timer does.
  notify_first()
end
if patience > 0 and first ~= owner then
  return -1
end
return redis.call('PTTL', KEYS[1])
