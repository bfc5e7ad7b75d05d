-- Releases the rebuild mutex without storing anything, if the caller still owns it.
--
-- KEYS[1]  the mutex, a string
-- ARGV[1]  its owner
--
-- Returns 1 when released, 0 when it has expired or belongs to another owner.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
