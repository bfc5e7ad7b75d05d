-- Begin to fill a Bloom filter, or join those who are filling it.
--
-- KEYS[1]  the filter, a string: the bits, then 73 bytes that tell its state
-- ARGV[1]  bytes of bits before the state
-- ARGV[2]  a token never used before, 32 characters
--
-- The state is one letter (F: being filled, R: ready), the run id of the server process, and the
-- token of the filling. It is part of the same string as the bits, so that they cannot be lost
-- apart from each other; and it names the server process, because a restarted one may have come
-- back without what it was told last.
--
-- Returns the token to finish with, or "" when the filter is ready.
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
