-- Restores a vote for several keys of which some or all were lost. If each of KEYS is absent or holds ARGV[1], all of
-- them hold it afterwards, and expire ARGV[2] milliseconds from now, but not earlier than before. Returns 1 if the vote
-- was restored. Returns 0 if a key holds another value; then nothing is written.
local held = {}
for place, key in ipairs(KEYS) do
  local value = redis.pcall('GET', key)
  if value and value ~= ARGV[1] then
    -- Any error but WRONGTYPE shows nothing about the key, so the script returns the error.
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
