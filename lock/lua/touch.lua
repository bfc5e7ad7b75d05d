-- Write a key without changing it, so that WAIT on the same connection has something to wait for:
-- replicas that have acknowledged this write have everything before it too.
--
-- KEYS[1]  the lock's name
--
-- Returns 1, or 0 when there is no such key or it never expires.
-- Time stands still while a script runs, so the expiry stays what it is.
local left = redis.call('PTTL', KEYS[1])
if left <= 0 then
  return 0
end
return redis.call('PEXPIRE', KEYS[1], left)
