-- Looks sessions up and renews them, in one round trip.
-- KEYS     login:token:{token}, hashes of id, nickName, icon
-- ARGV[1]  time to live, s
-- ARGV[2]  how much of it may have passed before it is set again, s: a busy session is then not written at
--          every request
-- Returns  for each key id, nickName and icon, in one flat list; the id is '' where there is no such session.
local sessions = {}
local low = ARGV[1] - ARGV[2]
for _, key in ipairs(KEYS) do
  -- pcall: an error with one key must not fail the others.
  local session = redis.pcall('HMGET', key, 'id', 'nickName', 'icon')
  if session[1] then
    if redis.call('TTL', key) < low then
      redis.call('EXPIRE', key, ARGV[1])
    end
  end
  for field = 1, 3 do
    sessions[#sessions + 1] = session[field] or ''
  end
end
return sessions
