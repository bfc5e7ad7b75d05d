-- Stores a value unconditionally and invalidates the copy in every node's memory.
--
-- KEYS[1]  the cached value
-- KEYS[2]  its lease; deleted, so that loads under way cannot overwrite the value
-- ARGV[1]  the invalidation channel
-- ARGV[2]  the message that names the key
-- ARGV[3]  the value
-- ARGV[4]  time to live in milliseconds; "0": no expiry
if ARGV[4] == '0' then
  redis.call('SET', KEYS[1], ARGV[3])
else
  redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
end
redis.call('DEL', KEYS[2])
redis.call('PUBLISH', ARGV[1], ARGV[2])
return 1
