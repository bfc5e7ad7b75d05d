-- Free one side of a read-write lock whoever holds it, and tell its waiters.
--
-- KEYS[1]  the lock's name
-- KEYS[2]  the channel its waiters listen on
-- KEYS[3]  the prefix of all owners' hold keys
-- ARGV[1]  the commands that announce
-- ARGV[2]  the message
-- ARGV[3]  the side: "read" or "write"; the other side is left alone
--
-- Returns 1 when there was a lock to free, else 0.
if redis.call('HGET', KEYS[1], 'mode') ~= ARGV[3] then
  return 0
end
for _, owner in ipairs(redis.call('HKEYS', KEYS[1])) do
  for hold = 1, tonumber(redis.call('HGET', KEYS[1], owner)) or 0 do
    redis.call('DEL', KEYS[3] .. ':' .. owner .. ':rwlock_timeout:' .. hold)
  end
end
redis.call('DEL', KEYS[1])
tell(KEYS[2])
return 1
