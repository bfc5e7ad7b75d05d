-- Looks sessions up and renews them, in one round trip. What fails with one key fails no other.
-- KEYS     login:token:{token}, hashes of id, nickName, icon
-- ARGV[1]  time to live, s
-- ARGV[2]  how much of it may have passed before it is set again, s: a busy session is then not written at
--          every request
-- Returns  for each key id, nickName, icon and an error, in one flat list; the id is '' where there is no such
--          session, or where the error says that it cannot be read. A session that is not renewed has its error, too.
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
  -- The server's state is no key's fault: whoever asks must look for its master.
  if failed and (string.find(failed, '^READONLY') or string.find(failed, '^MASTERDOWN')) then
    return redis.error_reply(failed)
  end
  for field = 1, 3 do
    sessions[#sessions + 1] = session[field] or ''
  end
  sessions[#sessions + 1] = failed or ''
end
return sessions
