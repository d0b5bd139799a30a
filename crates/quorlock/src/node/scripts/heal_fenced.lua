-- Restores a lost vote with a fencing token. The first half of KEYS are the lock's keys, the second half their
-- counters. A single key must be absent, each of several must be absent or hold ARGV[1], and no counter may be above
-- ARGV[3]. Then each key holds ARGV[1] for at least ARGV[2] milliseconds, and each counter is ARGV[3] for ARGV[4]
-- milliseconds. Returns 1. If nothing is written: 0 if a key is in the way, or {largest counter} if it is above
-- ARGV[3].
local locks = #KEYS / 2
local held = {}
for place = 1, locks do
  if redis.call('EXISTS', KEYS[place]) == 1 then
    local value = locks > 1 and redis.pcall('GET', KEYS[place])
    if value ~= ARGV[1] then
      -- An error other than WRONGTYPE says nothing about the key, so it is returned.
      if type(value) == 'table' and value.err and not string.find(value.err, 'WRONGTYPE', 1, true) then
        return value
      end
      return 0
    end
    held[place] = true
  end
end
local largest = 0
for place = locks + 1, #KEYS do
  local counter = redis.call('GET', KEYS[place]) or '0'
  if not string.find(counter, '^%d+$') then
    return redis.error_reply('ERR the fence counter is no number')
  end
  largest = math.max(largest, tonumber(counter))
end
if largest > tonumber(ARGV[3]) then
  return {largest}
end
for place = locks + 1, #KEYS do
  redis.call('SET', KEYS[place], ARGV[3], 'PX', ARGV[4])
end
for place = 1, locks do
  if not held[place] then
    redis.call('SET', KEYS[place], ARGV[1], 'PX', ARGV[2])
  elseif redis.call('PTTL', KEYS[place]) < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', KEYS[place], ARGV[2])
  end
end
return 1
