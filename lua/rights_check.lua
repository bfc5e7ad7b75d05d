-- Checks that the Redis user may use the service's commands on a key with this name; changes nothing.
--
-- KEYS[1]  a name that no key has
--
-- Returns 1, or the error of the first command that is not allowed.
redis.call('EXISTS', KEYS[1])
redis.call('HGETALL', KEYS[1])
redis.call('PERSIST', KEYS[1])
redis.call('DEL', KEYS[1])
redis.call('GEOSEARCH', KEYS[1], 'FROMLONLAT', '0', '0', 'BYRADIUS', '1', 'm')
redis.call('XADD', KEYS[1], 'NOMKSTREAM', '*', 'field', 'value')
return 1
