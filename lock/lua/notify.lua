-- Prelude of the scripts that announce something. It is put before them, not run by itself.
--
-- ARGV[1]  the commands that announce, separated by blanks: PUBLISH, and SPUBLISH on a cluster
-- ARGV[2]  the message
-- ARGV[3]  the channel. Not one of the KEYS: a key that does not exist would make a cluster refuse
--          the script (TRYAGAIN) for as long as the slot is being moved
local function notify(suffix)
  for command in string.gmatch(ARGV[1], '%S+') do
    -- pcall: what is announced has happened, even where telling is refused (a denied channel,
    -- SPUBLISH before Redis 7). Waiters look again by themselves when the lease they know of ends.
    redis.pcall(command, ARGV[3] .. (suffix or ''), ARGV[2])
  end
end

