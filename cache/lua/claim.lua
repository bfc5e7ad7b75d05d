-- Look at a cached value once more and, where it has to be loaded, ask for the right to do so.
--
-- KEYS[1]  the cached value
-- KEYS[2]  its lease: whoever loads must hold it to store (see cache_store.lua)
-- KEYS[3]  optional: the rebuild mutex, a string
-- ARGV[1]  a token of the caller's, never used before: owner of the mutex, and the new lease
-- ARGV[2]  how long the lease lasts, milliseconds
-- ARGV[3]  how long the mutex lasts, milliseconds
-- ARGV[4]  "1": load even though there is a value (it is stale, or cannot be read)
--
-- Returns {value or nil, its PTTL, lease or nil}. With a lease the caller may load, and holds the
-- mutex if it asked for one; without, the value is there or somebody else is loading it.
-- Looking and claiming are one step: nobody loads what was stored a moment ago.
local value = redis.call('GET', KEYS[1])
local ttl = redis.call('PTTL', KEYS[1])
if value and ARGV[4] ~= '1' then
  return {value, ttl, false}
end
if KEYS[3] and not redis.call('SET', KEYS[3], ARGV[1], 'NX', 'PX', ARGV[3]) then
  return {value, ttl, false}
end
local lease = redis.call('GET', KEYS[2])
if not lease then
  lease = ARGV[1]
end
redis.call('SET', KEYS[2], lease, 'PX', ARGV[2])
return {value, ttl, lease}
