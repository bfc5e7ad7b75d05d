-- Give the rebuild mutex back without storing anything, but only for the owner that took it.
--
-- KEYS[1]  the mutex, a string
-- ARGV[1]  its owner
--
-- Returns 1 when removed, 0 when it is gone or somebody else's.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
