-- Release permits of a semaphore, once for each record, and notify its waiters.
--
-- KEYS[1]   the semaphore: a string, the number of permits that are free
-- KEYS[2]   the record: of the acquire whose permits are released, or of this command alone
-- ARGV[1]   how many permits; negative removes permits, also where none is free
-- ARGV[2]   TTL of the record in milliseconds
-- ARGV[3]   condition: 'taken', if the record says that they were acquired; 'exists', if there is a
--           semaphore; 'always'
-- ARGV[4]   the channel of its waiters
-- ARGV[5..] the commands that publish: PUBLISH, and SPUBLISH on a cluster
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
local met = record == 'taken' or ARGV[3] ~= 'taken'
if ARGV[3] ~= 'always' and redis.call('EXISTS', KEYS[1]) == 0 then
  met = false
end
redis.call('SET', KEYS[2], met and 'given' or 'void', 'PX', ARGV[2])
if not met then
  return 0
end
local free = redis.call('INCRBY', KEYS[1], ARGV[1])
-- With none free there is no waiter to notify. pcall: they are released, even if publishing is refused.
local denied = false
if free > 0 then
  for i = 5, #ARGV do
    local reply = redis.pcall(ARGV[i], ARGV[4], tostring(free))
    if type(reply) == 'table' and reply.err then
      denied = denied or string.find(reply.err, 'NOPERM') ~= nil
        or string.find(reply.err, 'user executing') ~= nil
        or string.find(reply.err, 'ACL failure') ~= nil
    end
  end
end
return denied and 3 or 1
