-- Leases numbers for order ids.
--
-- KEYS[3]  icr:order:{day}
-- ARGV[1]  where the counter begins under a new mark and on a new day. It is random: numbers that were leased before the data
--          was lost, or by another server, must not come again in the same second
-- ARGV[2]  how many numbers
--
-- Returns the last number.
mark(false)
-- The counters that began under this mark. Those of two days are kept, as the instances' clocks differ.
local begun = redis.call('HGET', P, 'ids') or ''
if not names(begun, KEYS[3]) or redis.call('EXISTS', KEYS[3]) == 0 then
  redis.call('HSET', P, 'ids', KEYS[3] .. ' ' .. (string.match(begun, '^%S+') or ''))
  redis.call('SET', KEYS[3], ARGV[1])
end
return redis.call('INCRBY', KEYS[3], ARGV[2])
