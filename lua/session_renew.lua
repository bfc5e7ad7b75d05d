-- Looks sessions up and renews them, in one round trip. An error of one key does not affect the others.
-- KEYS     login:token:{token}, hashes of id, nickName, icon
-- ARGV[1]  time to live, s
-- ARGV[2]  how much of it may pass before it is set again, s, so that a busy session is not written at every request
-- Returns  for each key id, nickName, icon and an error, in one flat list. The id is '' if there is no such session,
--          or if it could not be read: then there is an error. A session that could not be renewed has both.
local sessions = {}
local low = ARGV[1] - ARGV[2]
for _, key in ipairs(KEYS) do
  local failed
  local session = redis.pcall('HMGET', key, 'id', 'nickName', 'icon')
  if session.err then
    -- A key of another type is no session.
    failed = not string.find(session.err, '^WRONGTYPE') and session.err
  elseif session[1] then
    local renewed = redis.pcall('TTL', key)
    if type(renewed) == 'number' and renewed < low then
      renewed = redis.pcall('EXPIRE', key, ARGV[1])
    end
    failed = type(renewed) == 'table' and renewed.err
  end
  -- Not the key's fault but the server's: the whole call fails, and the caller looks for the master.
  if failed and (string.find(failed, '^READONLY') or string.find(failed, '^MASTERDOWN')) then
    return redis.error_reply(failed)
  end
  for field = 1, 3 do
    sessions[#sessions + 1] = session[field] or ''
  end
  sessions[#sessions + 1] = failed or ''
end
return sessions
