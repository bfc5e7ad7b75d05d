-- Common part of the scripts that begin or end a hold: joined in front of them.
--
-- The last of KEYS  the owner's generation for this lock; set only after a command got no reply
-- The last of ARGV  the generation of this command
--
-- Whether the client has given this command up. Redis executes it late, so it must have no effect.
local function outdated()
  local generation = redis.call('GET', KEYS[#KEYS])
  return generation and tonumber(generation) > tonumber(ARGV[#ARGV])
end

