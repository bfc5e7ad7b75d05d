-- Write a key without changing it, so that WAIT on the same connection has a write to wait for:
-- replicas that have acknowledged it have every earlier write too.
--
-- KEYS[1]  the lock's name
--
-- Returns 1, or 0 when there is no such key or it never expires.
-- The clock does not advance while a script runs, so the expiry stays the same.
local left = redis.call('PTTL', KEYS[1])
if left <= 0 then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], left)
