-- Raise an owner's generation for a lock: older commands have no effect from now on.
--
-- KEYS[1]  the generation
-- ARGV[1]  the new one
-- ARGV[2]  how long to keep it, in milliseconds
--
-- Executed late itself, it does not lower a generation.
local generation = redis.call('GET', KEYS[1])
if not generation or tonumber(generation) < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
end
return nil
