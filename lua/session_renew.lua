-- Look sessions up and renew them, in one round trip.
-- KEYS     login:token:{token}, hashes of id, nickName, icon
-- ARGV[1]  time to live, in seconds
-- Returns  for each key { id, nickName, icon }, or false where there is no such session.
local sessions = {}
for at, key in ipairs(KEYS) do
  -- Whatever is wrong with one key is no matter of the others.
  local session = redis.pcall('HMGET', key, 'id', 'nickName', 'icon')
  if session[1] then
    redis.call('EXPIRE', key, ARGV[1])
    sessions[at] = { session[1], session[2] or '', session[3] or '' }
  else
    sessions[at] = false
  end
end
return sessions
