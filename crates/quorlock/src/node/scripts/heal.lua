-- Gives a vote for several keys again that was lost, wholly or in part: if each of KEYS is absent or
-- holds ARGV[1], all are made to hold it for ARGV[2] milliseconds from now, never shorter than they would.
-- Answers 1 set, 0 some key is another's; then nothing is written.
local held = {}
for place, key in ipairs(KEYS) do
  local value = redis.pcall('GET', key)
  if value and value ~= ARGV[1] then
    -- An error other than that of another type says nothing about the key: it is handed on.
    if type(value) == 'table' and value.err and not string.find(value.err, 'WRONGTYPE', 1, true) then
      return value
    end
    return 0
  end
  held[place] = value
end
for place, key in ipairs(KEYS) do
  if not held[place] then
    redis.call('SET', key, ARGV[1], 'PX', ARGV[2])
  elseif redis.call('PTTL', key) < tonumber(ARGV[2]) then
    redis.call('PEXPIRE', key, ARGV[2])
  end
end
return 1
