-- Registers in database 0 which database has the locks and the markers. Writes ARGV[1] to KEYS[1] if KEYS[1] is absent
-- (ARGV[2] is 'new') or in any case ('instead'), and nothing with 'look'. Returns the registration. If the memory is
-- full, 'new' writes nothing, which is no error, because the locks must live on.
if ARGV[1] ~= '0' then
  redis.call('SELECT', 0)
end
local text = redis.call('GET', KEYS[1])
if ARGV[2] == 'instead' or (ARGV[2] == 'new' and not text) then
  local written = redis.pcall('SET', KEYS[1], ARGV[1])
  if not written.err then
    text = ARGV[1]
  elseif ARGV[2] == 'instead' or not string.find(written.err, 'OOM', 1, true) then
    return written
  end
end
return text
