-- Sets a waiting writer's intents, which keep new readers out: sets each of KEYS that is absent to ARGV[1] for ARGV[2]
-- milliseconds, and, if ARGV[3] is 1, also each that holds ARGV[1]. Another writer's intent stays, because it keeps
-- readers out too. Returns 1 if all KEYS hold ARGV[1] now, otherwise 0.
local is_ours = 1
for _, key in ipairs(KEYS) do
  local value = redis.pcall('GET', key)
  if value == false or value == ARGV[1] then
    if value == false or ARGV[3] == '1' then
      redis.call('SET', key, ARGV[1], 'PX', ARGV[2])
    end
  elseif type(value) == 'table' and value.err and not string.find(value.err, 'WRONGTYPE', 1, true) then
    -- An error other than WRONGTYPE says nothing about the key, so it is returned.
    return value
  else
    is_ours = 0
  end
end
return is_ours
