-- Restores a lost vote for several keys: if each of KEYS is absent or holds ARGV[1], each then holds ARGV[1] for at
-- least ARGV[2] milliseconds. Returns 1, or 0 if a key has another value; nothing is written then.
local held = {}
for place, key in ipairs(KEYS) do
  local value = redis.pcall('GET', key)
  if value and value ~= ARGV[1] then
    -- An error other than WRONGTYPE says nothing about the key, so it is returned.
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
