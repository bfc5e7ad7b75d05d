-- Store what was loaded, unless the key was invalidated since the load began; give the mutex back.
--
-- KEYS[1]  the cached value
-- KEYS[2]  its lease
-- KEYS[3]  optional: the rebuild mutex
-- ARGV[1]  the lease as cache_claim.lua returned it
-- ARGV[2]  the value
-- ARGV[3]  how long it lasts in milliseconds; "0": for ever
-- ARGV[4]  the owner of the mutex
--
-- Returns 1 when stored. An invalidation removes the lease, and so does a Redis that lost its
-- data: in both cases a load that began before is refused (0).
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
