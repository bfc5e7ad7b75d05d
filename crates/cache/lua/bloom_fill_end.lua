-- Marks a Bloom filter as ready, unless it or the server process changed since the fill began.
--
-- KEYS[1]  the filter
-- ARGV[1]  size of the bits in bytes: the offset of the state
-- ARGV[2]  the token that bloom_fill_begin.lua returned
--
-- Returns 1 when the filter is ready, 0 when data was lost meanwhile and it has to be filled again.
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local state = redis.call('GETRANGE', KEYS[1], ARGV[1], ARGV[1] + 72)
if string.sub(state, 2) ~= run .. ARGV[2] then
  return 0
end
redis.call('SETRANGE', KEYS[1], ARGV[1], 'R')
return 1
