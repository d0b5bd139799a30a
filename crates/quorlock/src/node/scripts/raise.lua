-- Raises the counters of a lock with a fencing token. The first half of KEYS are the lock's keys, the second half are
-- their counters. If all keys hold ARGV[1] and no counter is above ARGV[2], the counters below ARGV[2] are set to it,
-- with a ttl of ARGV[3] milliseconds. Returns {largest counter afterwards} if all keys hold ARGV[1]. Otherwise nothing
-- is written: returns 0 if a key has another value or type, or else -1 if a key is absent.
local locks = #KEYS / 2
local is_absent = false
for place = 1, locks do
  local value = redis.pcall('GET', KEYS[place])
  if value == false then
    is_absent = true
  elseif value ~= ARGV[1] then
    -- Any error but WRONGTYPE shows nothing about the key, so the script returns the error.
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
    return redis.error_reply('ERR the fencing counter is not a number')
  end
  largest = math.max(largest, tonumber(counter))
  if tonumber(counter) < to then
    table.insert(below, KEYS[place])
  end
end
-- If one counter is above the number, this server cannot record the lock's fencing token.
if largest > to then
  return {largest}
end
for _, key in ipairs(below) do
  redis.call('SET', key, ARGV[2], 'PX', ARGV[3])
end
return {to}
