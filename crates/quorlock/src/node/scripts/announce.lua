-- Says that a writer waits: those of KEYS that are absent are set to ARGV[1] for ARGV[2] milliseconds, and if ARGV[3]
-- is 1 also those that hold ARGV[1]. Another writer's word is left as it is, because it keeps readers out too. Answers 1
-- if all of KEYS hold ARGV[1] now, 0 if any holds something else.
local is_ours = 1
for _, key in ipairs(KEYS) do
  local value = redis.pcall('GET', key)
  if value == false or value == ARGV[1] then
    if value == false or ARGV[3] == '1' then
      redis.call('SET', key, ARGV[1], 'PX', ARGV[2])
    end
  elseif type(value) == 'table' and value.err and not string.find(value.err, 'WRONGTYPE', 1, true) then
    -- An error other than that of another type says nothing about the key: it is handed on.
    return value
  else
    is_ours = 0
  end
end
return is_ours
