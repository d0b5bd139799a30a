-- Registers the number of the database that has the locks and the markers, under KEYS[1] in database 0. The connection
-- may use any database. Writes ARGV[1] if KEYS[1] is absent (ARGV[2] 'new') or in any case ('instead'); with 'look',
-- writes nothing. Returns the registration afterwards. If the server's memory is full, 'new' writes nothing and returns
-- no error, because the locks that the server has must stay usable.
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
