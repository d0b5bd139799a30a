-- Acquires a lock that has a fence. KEYS are its keys, as many counters, one for each, and the node's marker:
-- if all keys are absent, each is set to ARGV[1] for ARGV[2] milliseconds, and the counters move on, all to
-- one number, to live for ARGV[3] milliseconds: to what is largest of the next number after all of them, the
-- floor in the marker, and the number ARGV[4] that the client proposes; of that, no more than an hour ahead
-- of this server's clock, for clients' clocks err. Answers the number; or, with nothing written, the
-- largest counter and what each key holds: {counter, told...}.
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
-- From here on numbers are not exact any more.
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
