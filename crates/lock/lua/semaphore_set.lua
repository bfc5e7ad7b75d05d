-- Create a semaphore with its permits, and notify its waiters.
--
-- KEYS[1]   the semaphore: a string, the number of permits that are free
-- ARGV[1]   how many permits
-- ARGV[2]   the channel of its waiters
-- ARGV[3..] the commands that publish: PUBLISH, and SPUBLISH on a cluster
--
-- Returns 1 when set, 0 when the semaphore exists.
if redis.call('EXISTS', KEYS[1]) == 1 then
  return 0
end
redis.call('SET', KEYS[1], ARGV[1])
for i = 3, #ARGV do
  redis.pcall(ARGV[i], ARGV[2], ARGV[1])
end
return 1
