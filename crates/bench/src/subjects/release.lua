-- Releases a lock: those of KEYS that hold ARGV[1] are deleted.
-- Answers 1 all were; else 0 some key has another value or another type, else -1 some key is absent.
local is_absent, is_other, failed = false, false, false
for _, key in ipairs(KEYS) do
  local value = redis.pcall('GET', key)
  if value == ARGV[1] then
    redis.call('DEL', key)
  elseif value == false then
    is_absent = true
  elseif type(value) == 'table' and value.err and not string.find(value.err, 'WRONGTYPE', 1, true) then
    -- An error other than that of another type says nothing about the key: it is handed on.
    failed = value
  else
    is_other = true
  end
end
return failed or is_other and 0 or is_absent and -1 or 1
