-- Says whether what this server may have lost has been added again. Its data may name an epoch of another run: then nobody
-- has noticed the loss yet.
--
-- KEYS[1]  stream.orders.epoch
-- KEYS[2]  stream.orders
-- ARGV[1]  how old the epoch must be, so that every node has added again what was lost; ms
-- ARGV[2]  the group that marks the stream of the epoch: a stream without it was lost, and nobody has noticed yet
--
-- Returns  1 or 0.
local is_marked = false
local groups = redis.pcall('XINFO', 'GROUPS', KEYS[2])
for _, group in ipairs(groups) do
  for at = 1, #group, 2 do
    is_marked = is_marked or group[at] == 'name' and group[at + 1] == ARGV[2]
  end
end
if not is_marked then
  return 0
end
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local since = string.match(redis.call('GET', KEYS[1]) or '', '^' .. run .. ':(%d+)$')
if not since then
  return 0
end
local now = redis.call('TIME')
local age = now[1] * 1000000 + now[2] - since
-- A negative age is that of a clock that stepped back: how old the epoch is is unknown.
return (age < 0 or age >= ARGV[1] * 1000) and 1 or 0
