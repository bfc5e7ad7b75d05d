-- Common part of the scripts that begin or end a hold: joined in front of them.
--
-- The last of KEYS  the owner's generation for this lock; absent until a command was not answered
-- The last of ARGV  the generation of this command
--
-- Whether this command was given up: executed late, it must have no effect.
local function outdated()
  local generation = redis.call('GET', KEYS[#KEYS])
  return generation and tonumber(generation) > tonumber(ARGV[#ARGV])
end

