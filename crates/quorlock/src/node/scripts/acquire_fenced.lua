-- Acquires a lock with a fencing token. KEYS are the lock's keys, a counter for each key, and the node's marker. If all
-- keys are absent, sets each key to ARGV[1] for ARGV[2] milliseconds, and all counters to the token, for ARGV[3]
-- milliseconds. The token is the largest of: the largest counter + 1, the floor in the marker, and the client's
-- proposal ARGV[4]. The proposal is bounded by this server's clock + 1 hour, because clients' clocks err.
-- Returns the token. If a key exists, writes nothing and returns {largest counter, state of each key...}.
local locks = (#KEYS - 1) / 2
local largest = 0
for place = locks + 1, 2 * locks do
  local counter = redis.call('GET', KEYS[place]) or '0'
  if not string.find(counter, '^%d+$') then
    return redis.error_reply('ERR the fence counter is no number')
  end
  largest = math.max(largest, tonumber(counter))
end
local is_free = true
for place = 1, locks do
  is_free = is_free and redis.call('PTTL', KEYS[place]) == -2
end
if not is_free then
  local answer = {largest}
  for place = 1, locks do
    table.insert(answer, tell(KEYS[place], locks))
  end
  return answer
end
local marker = redis.call('GET', KEYS[#KEYS]) or ''
local floor = tonumber(string.match(marker, 'floor=(%d+)$')) or 0
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local fence = math.max(largest + 1, floor, math.min(tonumber(ARGV[4]), now + 3600000000))
-- Numbers from here on are not exact.
if fence >= 9007199254740992 then
  return redis.error_reply('ERR the fence counter is at its end')
end
for place = locks + 1, 2 * locks do
  redis.call('SET', KEYS[place], string.format('%.0f', fence), 'PX', ARGV[3])
end
for place = 1, locks do
  redis.call('SET', KEYS[place], ARGV[1], 'PX', ARGV[2])
end
return fence
