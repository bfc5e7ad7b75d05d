-- Create a semaphore with its permits, and notify its waiters.
--
-- KEYS[1]     the semaphore: a string, the number of permits that are free
-- ARGV[1..3]  see notify.lua; the message is the number of free permits
-- ARGV[4]     how many permits
--
-- Returns 1 when set, 0 when the semaphore exists.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
redis.call('SET', KEYS[1], ARGV[4])
notify('', ARGV[4])
return 1
