-- Gives a vote again that was lost. The first half of KEYS are the lock's keys, the others their counters: if
-- a single key is absent, or each of several is absent or holds ARGV[1], and no counter is above ARGV[3], the
-- keys are made to hold ARGV[1] for ARGV[2] milliseconds from now, never shorter than they would, and the
-- counters are set to ARGV[3] for ARGV[4]. Answers 1 set; or, with nothing written, 0 some key is there
-- that must not be, or {the largest counter} if that is above.
local locks = #KEYS / 2
local held = {}
for place = 1, locks do
  if redis.call('EXISTS', KEYS[place]) == 1 then
    local value = locks > 1 and redis.pcall('GET', KEYS[place])
    if value ~= ARGV[1] then
      -- An error other than that of another type says nothing about the key: it is handed on.
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
