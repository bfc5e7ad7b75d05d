-- Common part of the scripts that publish a message: joined in front of them.
--
-- ARGV[1]  the commands that publish, separated by blanks: PUBLISH, and SPUBLISH on a cluster
-- ARGV[2]  the message
-- ARGV[3]  the channel. Not one of the KEYS: a key that does not exist would make a cluster refuse
--          the script (TRYAGAIN) while the slot is being moved
local denied = false

local function notify(suffix)
  for command in string.gmatch(ARGV[1], '%S+') do
    -- pcall: the release has happened, even where publishing is refused (a denied channel, SPUBLISH
    -- before Redis 7). Waiters try again by themselves when the lease they know of ends.
    local reply = redis.pcall(command, ARGV[3] .. (suffix or ''), ARGV[2])
    if type(reply) == 'table' and reply.err then
      -- For a command in a script, Redis 7.0 and older say "user executing"; later ones and Valkey say
      -- "ACL failure".
      local text = reply.err
      denied = denied or string.find(text, 'NOPERM') ~= nil
        or string.find(text, 'user executing') ~= nil or string.find(text, 'ACL failure') ~= nil
    end
  end
end

-- The reply of a script that has released: 1, and 2 more if the user may not publish.
local function released()
  return denied and 3 or 1
end

