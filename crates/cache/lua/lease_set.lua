-- Stores a loaded value if its lease is still valid, and releases the rebuild mutex.
--
-- KEYS[1]  the cached value
-- KEYS[2]  its lease
-- KEYS[3]  optional: the rebuild mutex
-- ARGV[1]  the lease as lease_get.lua returned it
-- ARGV[2]  the value
-- ARGV[3]  time to live in milliseconds; "0": no expiry
-- ARGV[4]  owner of the mutex
--
-- Returns 1 when stored, else 0. An invalidation deletes the lease, and so does a Redis that loses
-- its data: in both cases a load that began before is refused.
local stored = 0
if redis.call('GET', KEYS[2]) == ARGV[1] then
  if ARGV[3] == '0' then
    redis.call('SET', KEYS[1], ARGV[2])
  else
    redis.call('SET', KEYS[1], ARGV[2], 'PX', ARGV[3])
  end
  redis.call('DEL', KEYS[2])
  stored = 1
end
if KEYS[3] and redis.call('GET', KEYS[3]) == ARGV[4] then
  redis.call('DEL', KEYS[3])
end
return stored
