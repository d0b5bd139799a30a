-- Answers which of the calls in ARGV[1], one per line, the user may not make: their numbers.
local denied, place = {}, 0
for call in string.gmatch(ARGV[1], '[^\n]+') do
  place = place + 1
  local words = {}
  for word in string.gmatch(call, '%S+') do
    table.insert(words, word)
  end
  -- Servers from 7.0 on answer without the call. On older servers the call is made; it changes nothing.
  local is_known, is_allowed = pcall(redis.acl_check_cmd, unpack(words))
  local answer = not (is_known and is_allowed) and redis.pcall(unpack(words))
  -- These words are in errors about missing rights to commands, not to keys.
  if type(answer) == 'table' and answer.err and string.find(answer.err, 'run th', 1, true) then
    table.insert(denied, place)
  end
end
return denied
