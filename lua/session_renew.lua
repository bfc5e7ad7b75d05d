-- Look a session up and renew it, in one round trip.
-- KEYS[1]  login:token:{token}, a hash of id, nickName, icon
-- ARGV[1]  time to live, in seconds
-- Returns  { id, nickName, icon }, or nil where there is no such session.
local session = redis.call('HMGET', KEYS[1], 'id', 'nickName', 'icon')
if not session[1] then
  return nil
end
redis.call('EXPIRE', KEYS[1], ARGV[1])
return { session[1], session[2] or '', session[3] or '' }
