-- Acquire permits of a semaphore: the requested number or none.
--
-- KEYS[1]  the semaphore: a string, the number of permits that are free
-- KEYS[2]  the record of this acquire
-- ARGV[1]  how many permits
-- ARGV[2]  TTL of the record in milliseconds
--
-- Returns 1 when acquired, else 0.
--
-- A permit has no owner, so only the record distinguishes a command that is sent again after a lost
-- reply (it counts once) from a second acquire, or from one that arrives after the clean-up of its
-- caller (it acquires nothing).
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
