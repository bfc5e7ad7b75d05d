-- Admits buyers, of whatever sales: each gets an entry in the stream, a claim, and one of the stock counter.
--
-- KEYS[3…]  for each sale three: seckill:stock:{voucherId}, seckill:order:{voucherId}, seckill:open:{voucherId}
-- ARGV[1]   until when this call may run, µs of this server's clock: one that a stopped server runs late admits nobody
-- ARGV[2]   how many users may have pending orders
-- ARGV[3…]  for each purchase four: its sale (1, 2, …), voucher, user, order id
--
-- Returns this server's clock, then an answer for each purchase. Called again with the same order id, it counts once.
local now = clock()
local answers = {string.format('%.0f', now)}
local m = mark(false)
local late, full = now > tonumber(ARGV[1]), redis.call('HLEN', P) - 2 >= tonumber(ARGV[2])
local users = {}
for at = 4 + 1, #ARGV, 4 do users[#users + 1] = ARGV[at] end
local values = {}
for at, value in ipairs(redis.call('HMGET', P, unpack(users))) do
  -- Set by an earlier purchase of this call, if the user has two.
  if values[users[at]] == nil then values[users[at]] = value end
end

local sales = {}
local function sale_of(number)
  if not sales[number] then
    local key = 3 * number
    local read = redis.call('MGET', KEYS[key], KEYS[key + 2])
    local sale = {counter = KEYS[key], claims = KEYS[key + 1], left = tonumber(read[1]), new = {}}
    sale.open = read[2] == m and sale.left and redis.call('SISMEMBER', sale.claims, m) == 1
    sales[number] = sale
  end
  return sales[number]
end

for at = 3, #ARGV, 4 do
  local sale, voucher, user, id = sale_of(tonumber(ARGV[at])), ARGV[at + 1], ARGV[at + 2], ARGV[at + 3]
  local value = values[user]
  local own = value and string.match(' ' .. value, ' ' .. voucher .. ':(%d+):')
  local answer
  if own then
    answer = own == id and 'pending' or 'claimed ' .. own
  elseif late then
    answer = 'late'
  elseif not sale.open then
    answer = 'closed'
  elseif redis.call('SISMEMBER', sale.claims, user) == 1 then
    answer = 'claimed'
  elseif sale.left < 1 then
    answer = 'sold out'
  elseif full then
    answer = 'full'
  else
    local entry = redis.call('XADD', S, 'NOMKSTREAM', '*', 'userId', user, 'voucherId', voucher, 'id', id)
    if entry then
      local order = voucher .. ':' .. id .. ':' .. entry
      values[user] = value and value .. ' ' .. order or order
      redis.call('HSET', P, user, values[user])
      redis.call('SADD', sale.claims, user)
      sale.left = redis.call('DECR', sale.counter)
      answer = 'pending'
    else
      m = mark(true)
      sale.open = false
      answer = 'closed'
    end
  end
  answers[#answers + 1] = answer
end
return answers
