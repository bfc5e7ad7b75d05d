-- Leases a block of ids' numbers.
--
-- KEYS[1]  the day's counter
-- ARGV[1]  how many numbers
--
-- Returns  the last number of the block, and the run id of this server: its data may be older than the numbers that were
-- leased in another run.
return {redis.call('INCRBY', KEYS[1], ARGV[1]), string.match(redis.call('INFO', 'server'), 'run_id:(%x+)')}
