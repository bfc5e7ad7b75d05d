-- Invalidates a cached value: in Redis, for loads under way, and in the memory of every node.
--
-- KEYS[1]  the cached value
-- KEYS[2]  its lease; without it, a load that began before can no longer be stored
-- ARGV[1]  the invalidation channel
-- ARGV[2]  the message that names the key
--
-- The message is published in the same atomic step as the deletion: a node that receives it and
-- reads Redis again cannot find the old value. Running it twice is harmless.
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('PUBLISH', ARGV[1], ARGV[2])
return 1
