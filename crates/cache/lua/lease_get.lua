-- Checks a cached value again and, where it has to be loaded, takes the rebuild mutex and a lease.
--
-- KEYS[1]  the cached value
-- KEYS[2]  its lease: required to store what was loaded (see lease_set.lua)
-- KEYS[3]  optional: the rebuild mutex, a string
-- ARGV[1]  a token never used before: owner of the mutex, and value of a new lease
-- ARGV[2]  time to live of the lease, milliseconds
-- ARGV[3]  time to live of the mutex, milliseconds
-- ARGV[4]  "1": load although there is a value (it is stale, or cannot be read)
--
-- Returns {value or nil, its PTTL, lease or nil}. With a lease the caller may load, and holds the
-- mutex if it asked for one. Without a lease, the value is there or another client is loading it.
-- Checking and locking are one atomic step, so a value that was just stored is not loaded again.
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
