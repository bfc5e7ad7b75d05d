-- Declare a Bloom filter filled, unless it or the server process has changed since the beginning.
--
-- KEYS[1]  the filter
-- ARGV[1]  bytes of bits before the state
-- ARGV[2]  the token that cache_bloom_begin.lua returned
--
-- Returns 1 when the filter is ready, 0 when something was lost meanwhile: then fill it again.
local run = string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')
local state = redis.call('GETRANGE', KEYS[1], ARGV[1], ARGV[1] + 72)
if string.sub(state, 2) ~= run .. ARGV[2] then
  return 0
end
redis.call('SETRANGE', KEYS[1], ARGV[1], 'R')
return 1
