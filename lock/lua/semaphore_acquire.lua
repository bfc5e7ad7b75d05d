-- Take permits from a semaphore, all that are asked for or none.
--
-- KEYS[1]  the semaphore: a string, the number of permits that are free
-- KEYS[2]  the record of this acquire
-- ARGV[1]  how many permits
-- ARGV[2]  how long the record lasts, in milliseconds
--
-- Returns 1 when taken, else 0.
--
-- A permit has no owner, so nothing but the record can tell a command that is sent again after a lost
-- reply (it counts once) from a second acquire, or one that arrives after its caller has given up and
-- cleaned up (it takes nothing).
local record = redis.call('GET', KEYS[2])
if record then
  return record == 'taken' and 1 or 0
end
local free = redis.call('GET', KEYS[1])
if not free or tonumber(free) < tonumber(ARGV[1]) then
  return 0
end
redis.call('DECRBY', KEYS[1], ARGV[1])
redis.call('SET', KEYS[2], 'taken', 'PX', ARGV[2])
return 1
