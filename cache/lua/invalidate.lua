-- Forget a cached value: in Redis, for every load on its way, and in the memory of every node.
--
-- KEYS[1]  the cached value
-- KEYS[2]  its lease; without it a load that began before can no longer be stored
-- ARGV[1]  the channel on which the nodes listen
-- ARGV[2]  the message that names the key
--
-- The message follows the deletion in the same step: a node that hears it and asks Redis again
-- cannot find the old value. Sent twice, it does no more than once.
redis.call('DEL', KEYS[1], KEYS[2])
redis.call('PUBLISH', ARGV[1], ARGV[2])
return 1
