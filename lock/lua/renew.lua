-- Give a held lock its full lease again (the watchdog's command).
--
-- KEYS[1]  the lock's name
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  owner
--
-- Returns 1 when renewed, 0 when the key is gone, -1 when somebody else holds it.
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
  redis.call('PEXPIRE', KEYS[1], ARGV[1])
  return 1
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
return -1
