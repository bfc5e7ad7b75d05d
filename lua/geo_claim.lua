-- Takes the lease to build a GEO index of shops. Concurrent builders share it, and any of them may store.
-- KEYS[1]  the lease; a write of a shop deletes it (see geo_store.lua)
-- ARGV[1]  a token never used before   ARGV[2]  time to live of the lease, milliseconds
-- Returns  the lease.
redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
return redis.call('GET', KEYS[1])
