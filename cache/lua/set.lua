-- Put a value into the cache whatever is there, and tell every node to forget its copy.
--
-- KEYS[1]  the cached value
-- KEYS[2]  its lease; loads that are on their way must not overwrite what is set here
-- ARGV[1]  the channel on which the nodes listen
-- ARGV[2]  the message that names the key
-- ARGV[3]  the value
-- ARGV[4]  how long it lasts in milliseconds; "0": for ever
if ARGV[4] == '0' then
  redis.call('SET', KEYS[1], ARGV[3])
else
  redis.call('SET', KEYS[1], ARGV[3], 'PX', ARGV[4])
end
redis.call('DEL', KEYS[2])
redis.call('PUBLISH', ARGV[1], ARGV[2])
return 1
