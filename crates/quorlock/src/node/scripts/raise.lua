-- Raises a lock's counters to its fencing token ARGV[2]. The first half of KEYS are the lock's keys, the second half
-- their counters. If all keys hold ARGV[1] and no counter is above ARGV[2], sets lower counters to ARGV[2] for ARGV[3]
-- milliseconds. Returns {largest counter}. 0 if a key has another value or type, otherwise -1 if a key is absent.
local locks = #KEYS / 2
local is_absent = false
for place = 1, locks do
  local value = redis.pcall('GET', KEYS[place])
  if value == false then
    is_absent = true
  elseif value ~= ARGV[1] then
    -- An error other than WRONGTYPE says nothing about the key, so it is returned.
    if type(value) == 'table' and value.err and not string.find(value.err, 'WRONGTYPE', 1, true) then
      return value
    end
    return 0
  end
end
if is_absent then
  return -1
end
local to = tonumber(ARGV[2])
local largest, below = 0, {}
for place = locks + 1, #KEYS do
  local counter = redis.call('GET', KEYS[place]) or '0'
  if not string.find(counter, '^%d+$') then
    return redis.error_reply('ERR the fence counter is no number')
  end
  largest = math.max(largest, tonumber(counter))
  if tonumber(counter) < to then
    table.insert(below, KEYS[place])
  end
end
-- This server cannot record the token if a counter is above it.
if largest > to then
  return {largest}
end
for _, key in ipairs(below) do
  redis.call('SET', key, ARGV[2], 'PX', ARGV[3])
end
return {to}
