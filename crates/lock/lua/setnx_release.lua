-- Delete the key of a SET NX lock, but only for the owner that set it.
--
-- KEYS[1]  the lock's key, a string
-- ARGV[1]  the owner's token
--
-- Returns 1 when deleted, 0 when the key is gone or belongs to another owner.
-- Reading and deleting in one script leaves no moment in which the key can expire, be set by another
-- owner, and then be deleted by this one.
if redis.call('GET', KEYS[1]) == ARGV[1] then
  return redis.call('DEL', KEYS[1])
end
return 0
