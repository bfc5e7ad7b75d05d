-- Give permits to a semaphore, once for each record, and tell its waiters.
--
-- KEYS[1]   the semaphore: a string, the number of permits that are free
-- KEYS[2]   the record: of the acquire whose permits come back, or of this command alone
-- ARGV[1]   how many permits; negative takes permits away, also where none is free
-- ARGV[2]   how long the record lasts, in milliseconds
-- ARGV[3]   on which condition: 'taken', only what the record says was taken; 'exists', if there is a
--           semaphore; 'always'
-- ARGV[4]   the channel its waiters listen on
-- ARGV[5..] the commands that tell them: PUBLISH, and SPUBLISH on a cluster
--
-- Returns 1 when given, now or by an earlier sending, and 0 when the condition does not hold. From
-- then on an acquire with the same record takes nothing.
local record = redis.call('GET', KEYS[2])
if record == 'given' then
  return 1
end
if record == 'void' then
  return 0
end
local met = record == 'taken' or ARGV[3] ~= 'taken'
if ARGV[3] ~= 'always' and redis.call('EXISTS', KEYS[1]) == 0 then
  met = false
end
redis.call('SET', KEYS[2], met and 'given' or 'void', 'PX', ARGV[2])
if not met then
  return 0
end
local free = redis.call('INCRBY', KEYS[1], ARGV[1])
-- With none free there is nobody to tell. pcall: they are given by now, even where telling is refused.
if free > 0 then
  for i = 5, #ARGV do
    redis.pcall(ARGV[i], ARGV[4], tostring(free))
  end
end
return 1
