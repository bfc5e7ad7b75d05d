-- Release one side of a read-write lock whichever owners hold it, and notify its waiters.
--
-- KEYS[1]     the lock's name, see read_acquire.lua
-- ARGV[1..3]  see notify.lua; the message is that of the side's own release
-- ARGV[4]     the side: "read" or "write"; the other side is left alone
-- ARGV[5]     prefix of the keys of holds
--
-- Returns 1 when it was held, else 0.
-- 3 instead of 1 if the user may not publish (see notify.lua).
if redis.call('HGET', KEYS[1], 'mode') ~= ARGV[4] then
  return 0
end
for _, owner in ipairs(redis.call('HKEYS', KEYS[1])) do
  for hold = 1, tonumber(redis.call('HGET', KEYS[1], owner)) or 0 do
    redis.call('DEL', ARGV[5] .. ':' .. owner .. ':rwlock_timeout:' .. hold)
  end
end
redis.call('DEL', KEYS[1])
notify()
return released()
