-- Releases a lock: deletes those of KEYS that hold ARGV[1]. Returns 1 if all keys were deleted; otherwise 0 if a key
-- has another value or type, or else -1 because a key is absent.
local is_absent, is_other, failed = false, false, false
for _, key in ipairs(KEYS) do
  local value = redis.pcall('GET', key)
  if value == ARGV[1] then
    redis.call('DEL', key)
  elseif value == false then
    is_absent = true
  elseif type(value) == 'table' and value.err and not string.find(value.err, 'WRONGTYPE', 1, true) then
    -- Any error but WRONGTYPE shows nothing about the key, so the script returns the error.
    failed = value
  else
    is_other = true
  end
end
return failed or is_other and 0 or is_absent and -1 or 1
