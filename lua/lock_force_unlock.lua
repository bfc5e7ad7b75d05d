-- Free the lock whoever holds it, and tell a waiter.
--
-- KEYS[1]  the lock's name
-- KEYS[2]  the channel its waiters listen on
-- ARGV[1]  the commands that announce, see lock_tell.lua
-- ARGV[2]  the message that tells them ("0")
--
-- Returns 1 when there was a lock to free, else 0.
if redis.call('DEL', KEYS[1]) == 1 then
  tell(KEYS[2])
  return 1
end
return 0
