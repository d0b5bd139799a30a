-- Acquires a lock with a fencing token. KEYS are the lock's keys, a counter for each of them, and the node's marker.
-- All of the lock's keys must be absent. With ARGV[5], the script takes the lock over instead: all of the lock's keys
-- must hold ARGV[5]. Sets each of the lock's keys to ARGV[1] with a ttl of ARGV[2] milliseconds, but no key expires
-- earlier than before. Sets all counters to one new number, with a ttl of ARGV[3] milliseconds. The new number is the
-- largest of three numbers: the largest counter plus one, the floor in the marker, and ARGV[4], the client's proposal.
-- The proposal counts as at most one hour ahead of this server's clock, because clients' clocks may be wrong. Returns
-- the new number. If a key is not as it must be, nothing is written, and the script returns {largest counter, state of
-- each key...}.
local locks = (#KEYS - 1) / 2
local largest = 0
for place = locks + 1, 2 * locks do
  local counter = redis.call('GET', KEYS[place]) or '0'
  if not string.find(counter, '^%d+$') then
    return redis.error_reply('ERR the fencing counter is not a number')
  end
  largest = math.max(largest, tonumber(counter))
end
local is_allowed = true
for place = 1, locks do
  if ARGV[5] then
    is_allowed = is_allowed and redis.pcall('GET', KEYS[place]) == ARGV[5]
  else
    is_allowed = is_allowed and redis.call('PTTL', KEYS[place]) == -2
  end
end
if not is_allowed then
  local answer = {largest}
  for place = 1, locks do
    table.insert(answer, state_of(KEYS[place], locks))
  end
  return answer
end
local marker = redis.call('GET', KEYS[#KEYS]) or ''
local floor = tonumber(string.match(marker, 'floor=(%d+)$')) or 0
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000000 + tonumber(time[2])
local fence = math.max(largest + 1, floor, math.min(tonumber(ARGV[4]), now + 3600000000))
-- Larger numbers are not exact in Lua.
if fence >= 9007199254740992 then
  return redis.error_reply('ERR the fencing counter is at its end')
end
for place = locks + 1, 2 * locks do
  redis.call('SET', KEYS[place], string.format('%.0f', fence), 'PX', ARGV[3])
end
for place = 1, locks do
  local ttl = ARGV[5] and math.max(redis.call('PTTL', KEYS[place]), tonumber(ARGV[2])) or ARGV[2]
  redis.call('SET', KEYS[place], ARGV[1], 'PX', ttl)
end
return fence
