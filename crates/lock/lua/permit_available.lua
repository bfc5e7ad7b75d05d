-- Count the free leased permits, including those whose lease has ended.
--
-- KEYS[1]  the semaphore: a string, the number of permits that are free
-- KEYS[2]  the acquired permits: a sorted set of ids by the time at which each expires (Unix, ms)
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
return tonumber(redis.call('GET', KEYS[1]) or 0) + redis.call('ZCOUNT', KEYS[2], 0, now)
