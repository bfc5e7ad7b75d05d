-- Begins to fill a Bloom filter, or joins a fill that is under way.
--
-- KEYS[1]  the filter, a string: the bits, then 73 bytes of state
-- ARGV[1]  size of the bits in bytes: the offset of the state
-- ARGV[2]  a token never used before, 32 characters
--
-- The state is one letter (F: being filled, R: ready), the run id of the server process, and the
-- token of the fill. It is part of the same string as the bits, so that neither can be lost without
-- the other; and it names the server process, because a restarted one may have lost its last writes.
--
-- Returns the token to end the fill with, or "" when the filter is ready.
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local state = redis.call('GETRANGE', KEYS[1], ARGV[1], ARGV[1] + 72)
if string.sub(state, 2, 41) == run then
  if string.sub(state, 1, 1) == 'R' then
    return ''
  end
  if string.sub(state, 1, 1) == 'F' then
    return string.sub(state, 42)
  end
end
redis.call('SETRANGE', KEYS[1], ARGV[1], 'F' .. run .. ARGV[2])
return ARGV[2]
