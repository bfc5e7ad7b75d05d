-- Renew a held lock to its full lease (the watchdog's command).
--
-- KEYS[1]  the lock's name
-- ARGV[1]  lease in milliseconds
-- ARGV[2]  owner
--
-- Returns 1 when renewed, 0 when there is no key, -1 when another owner holds it.
-- A longer lease stays: the owner may have re-entered for longer after this was sent.
if redis.call('HEXISTS', KEYS[1], ARGV[2]) == 1 then
  redis.call('PEXPIRE', KEYS[1], math.max(redis.call('PTTL', KEYS[1]), tonumber(ARGV[1])))
  return 1
end
if redis.call('EXISTS', KEYS[1]) == 0 then
  return 0
end
return -1
