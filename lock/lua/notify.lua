-- Common part of the scripts that publish a message: joined in front of them.
--
-- ARGV[1]  the commands that publish, separated by blanks: PUBLISH, and SPUBLISH on a cluster
-- ARGV[2]  the message
-- ARGV[3]  the channel. Not one of the KEYS: a key that does not exist would make a cluster refuse
--          the script (TRYAGAIN) while the slot is being moved
local function notify(suffix)
  for command in string.gmatch(ARGV[1], '%S+') do
    -- pcall: the release has happened, even where publishing is refused (a denied channel, SPUBLISH
    -- before Redis 7). Waiters try again by themselves when the lease they know of ends.
    redis.pcall(command, ARGV[3] .. (suffix or ''), ARGV[2])
  end
end

