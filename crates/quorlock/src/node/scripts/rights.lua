-- Answers which calls in ARGV[1], a line each, the user may not make, by their places.
local denied, place = {}, 0
for call in string.gmatch(ARGV[1], '[^\n]+') do
  place = place + 1
  local words = {}
  for word in string.gmatch(call, '%S+') do
    table.insert(words, word)
  end
  -- Servers from version 7 on tell without the call. It changes nothing.
  local is_known, is_allowed = pcall(redis.acl_check_cmd, unpack(words))
  local answer = not (is_known and is_allowed) and redis.pcall(unpack(words))
  -- "can't run this command", "permissions to run the": not about keys.
  if type(answer) == 'table' and answer.err and string.find(answer.err, 'run th', 1, true) then
    table.insert(denied, place)
  end
end
return denied
