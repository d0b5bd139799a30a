-- Releases a lock: deletes each of KEYS that holds ARGV[1].
-- Returns 1 if all did. Otherwise 0 if a key has another value or type, else -1 if a key is absent.
local is_absent, is_other, failed = false, false, false
for _, key in ipairs(KEYS) do
  local value = redis.pcall('GET', key)
  if value == ARGV[1] then
    redis.call('DEL', key)
  elseif value == false then
    is_absent = true
  elseif type(value) == 'table' and value.err and not string.find(value.err, 'WRONGTYPE', 1, true) then
    -- An error other than WRONGTYPE says nothing about the key, so it is returned.
    failed = value
  else
    is_other = true
  end
end
return failed or is_other and 0 or is_absent and -1 or 1
