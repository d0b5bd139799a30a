-- Returns the numbers of the calls that the user may not make. ARGV[1] has one call per line.
local denied, place = {}, 0
for call in string.gmatch(ARGV[1], '[^\n]+') do
  place = place + 1
  local words = {}
  for word in string.gmatch(call, '%S+') do
    table.insert(words, word)
  end
  -- From version 7 on, a server checks a right without the call. The call changes nothing.
  local is_known, is_allowed = pcall(redis.acl_check_cmd, unpack(words))
  local answer = not (is_known and is_allowed) and redis.pcall(unpack(words))
  -- Matches "can't run this command" and "permissions to run the", but not errors about keys.
  if type(answer) == 'table' and answer.err and string.find(answer.err, 'run th', 1, true) then
    table.insert(denied, place)
  end
end
return denied
