-- Restores a lost vote of a lock with a fencing token. The first half of KEYS are the lock's keys, the second half are
-- their counters. The condition: a single key is absent, or each of several keys is absent or holds ARGV[1], and no
-- counter is above ARGV[3]. Then the keys hold ARGV[1], and expire ARGV[2] milliseconds from now, but not earlier than
-- before. The counters are set to ARGV[3] with a ttl of ARGV[4] milliseconds. Returns 1 if the vote was restored.
-- Otherwise nothing is written: returns 0 if a key is in the way, or {largest counter} if a counter is above ARGV[3].
local locks = #KEYS / 2
local held = {}
for place = 1, locks do
  if redis.call('EXISTS', KEYS[place]) == 1 then
    local value = locks > 1 and redis.pcall('GET', KEYS[place])
    if value ~= ARGV[1] then
      -- Any error but WRONGTYPE shows nothing about the key, so the script returns the error.
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
    return redis.error_reply('ERR the fencing counter is not a number')
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
