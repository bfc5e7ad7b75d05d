-- Prelude of the scripts that announce something. It is put before them, not run by itself.
--
-- ARGV[1]  the commands that announce, separated by blanks: "PUBLISH", or more where a server has
--          more than one kind of channel
-- ARGV[2]  the message
local function tell(channel)
  for command in string.gmatch(ARGV[1], '%S+') do
    -- A server that denies the channel must not keep the lock: waiters have their timers.
    redis.pcall(command, channel, ARGV[2])
  end
end

