-- Begin to build an index. Several may: each gets the same lease, and any of them may store.
-- KEYS[1]  the lease; a write of a shop removes it (see geo_store.lua)
-- ARGV[1]  a token never used before   ARGV[2]  how long the lease lasts, milliseconds
-- Returns  the lease.
redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', ARGV[2])
return redis.call('GET', KEYS[1])
