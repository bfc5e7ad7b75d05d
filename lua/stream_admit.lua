-- Admits buyers of one or more sales. Each gets an entry in the stream, a claim, and one unit of the stock counter.
--
-- KEYS[3…]  three for each sale: seckill:stock:{voucherId}, seckill:order:{voucherId}, seckill:open:{voucherId}
-- ARGV[1]   how many users may have pending orders
-- ARGV[2…]  five for each purchase: the number of its sale in KEYS (1, 2, …), voucher, user, order id, and its deadline, µs
--           of this server's clock: a call that was delayed, or that a stopped server runs late, admits nobody
--
-- Returns this server's clock, then an answer for each purchase. A purchase that is sent again with its order id counts once.
-- A sale whose keys hold something unexpected counts as closed; the other sales are not affected.
local now = clock()
local answers = {string.format('%.0f', now)}
local m = mark(redis.call('EXISTS', S) == 0)
local full = redis.call('HLEN', P) - 2 >= tonumber(ARGV[1])
local users, values, fields = {}, {}, {}
for at = 4, #ARGV, 5 do users[#users + 1] = ARGV[at] end
for at, value in ipairs(redis.call('HMGET', P, unpack(users))) do values[users[at]] = value end

-- The state of the sales is read before anything is written.
local sales = {}
for key = 3, #KEYS, 3 do
  local counter, claims, open = KEYS[key], KEYS[key + 1], KEYS[key + 2]
  local read = redis.call('MGET', counter, open)
  local left = number(read[1])
  sales[key / 3] = {counter = counter, claims = claims, left = left, sold = 0,
    open = read[2] == m and left and redis.pcall('SISMEMBER', claims, m) == 1}
end

for at = 2, #ARGV, 5 do
  local sale, voucher, user, id = sales[tonumber(ARGV[at])], ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local value = values[user]
  local own = value and string.match(' ' .. value, ' ' .. voucher .. ':(%d+):')
  local answer
  if own then
    answer = own == id and 'pending' or 'claimed ' .. own
  elseif now > tonumber(ARGV[at + 4]) then
    answer = 'late'
  elseif not sale.open then
    answer = 'closed'
  elseif sale.left < 1 or full then
    local claimed = redis.call('SISMEMBER', sale.claims, user) == 1
    answer = claimed and 'claimed' or sale.left < 1 and 'sold out' or 'full'
  elseif redis.call('SADD', sale.claims, user) == 0 then
    answer = 'claimed'
  else
    local entry = redis.call('XADD', S, '*', 'userId', user, 'voucherId', voucher, 'id', id)
    local order = voucher .. ':' .. id .. ':' .. entry
    values[user] = value and value .. ' ' .. order or order
    fields[#fields + 1] = user
    fields[#fields + 1] = values[user]
    sale.left, sale.sold = sale.left - 1, sale.sold + 1
    answer = 'pending'
  end
  answers[#answers + 1] = answer
end

if #fields > 0 then
  redis.call('HSET', P, unpack(fields))
  for _, sale in ipairs(sales) do
    if sale.sold > 0 then redis.call('DECRBY', sale.counter, sale.sold) end
  end
end
return answers
