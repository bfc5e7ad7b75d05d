-- Release permits of a semaphore, once for each record, and notify its waiters.
--
-- KEYS[1]     the semaphore: a string, the number of permits that are free
-- KEYS[2]     the record: of the acquire whose permits are released, or of this command alone
-- ARGV[1..3]  see notify.lua; the message is the number of free permits
-- ARGV[4]     how many permits; negative removes permits, also where none is free
-- ARGV[5]     TTL of the record in milliseconds
-- ARGV[6]     condition: 'taken', if the record says that they were acquired; 'exists', if there is a
--             semaphore; 'always'
--
-- Returns 1 when released, now or by an earlier sending, and 0 when the condition does not hold. From
-- then on an acquire with the same record acquires nothing.
-- 2 more: the user may not publish, so that nobody was notified.
local record = redis.call('GET', KEYS[2])
if record == 'given' then
  return 1
end
if record == 'void' then
  return 0
end
local met = record == 'taken' or ARGV[6] ~= 'taken'
if ARGV[6] ~= 'always' and redis.call('EXISTS', KEYS[1]) == 0 then
  met = false
end
redis.call('SET', KEYS[2], met and 'given' or 'void', 'PX', ARGV[5])
if not met then
  return 0
end
local free = redis.call('INCRBY', KEYS[1], ARGV[4])
-- With none free there is no waiter to notify.
if free > 0 then
  notify('', tostring(free))
end
return released()
