-- Sets the intents of a waiting writer. KEYS that are absent are set to ARGV[1] with a ttl of ARGV[2] milliseconds. If
-- ARGV[3] is 1, KEYS that hold ARGV[1] get this ttl too. Another writer's intent stays, because it also keeps readers
-- out. Returns 1 if all of KEYS hold ARGV[1] now, and 0 if any of them holds another value.
local is_ours = 1
for _, key in ipairs(KEYS) do
  local value = redis.pcall('GET', key)
  if value == false or value == ARGV[1] then
    if value == false or ARGV[3] == '1' then
      redis.call('SET', key, ARGV[1], 'PX', ARGV[2])
    end
  elseif type(value) == 'table' and value.err and not string.find(value.err, 'WRONGTYPE', 1, true) then
    -- Any error but WRONGTYPE shows nothing about the key, so the script returns the error.
    return value
  else
    is_ours = 0
  end
end
return is_ours
