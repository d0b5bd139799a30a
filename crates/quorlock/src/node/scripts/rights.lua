-- Answers which of the calls in ARGV[1], a line each, by their places, the user may not make, whatever the keys. A server from
-- version 7 on says so without the call; an older one is asked by the call itself, which changes nothing.
local denied, place = {}, 0
for call in string.gmatch(ARGV[1], '[^\n]+') do
  place = place + 1
  local words = {}
  for word in string.gmatch(call, '%S+') do
    table.insert(words, word)
  end
  local is_known, is_allowed = true, false
  if redis.acl_check_cmd then
    is_known, is_allowed = pcall(redis.acl_check_cmd, unpack(words))
  end
  if is_known and not is_allowed then
    local answer = redis.pcall(unpack(words))
    local said = type(answer) == 'table' and answer.err or ''
    if string.find(said, "can't run this command", 1, true) or string.find(said, 'permissions to run', 1, true) then
      table.insert(denied, place)
    end
  end
end
return denied
