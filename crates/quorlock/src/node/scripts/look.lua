-- Reads the state of a lock's keys, and changes nothing. The first ARGV[1] of KEYS are the lock's keys. If there are
-- more keys, the others are the keys of waiting writers' intents, in the same order. If a key is free or has only
-- readers, and there is an intent for it, then its state is {'announced', ttl, value} with the ttl and the value of
-- the intent. Returns the state of each key; see `state_of`.
local locks = tonumber(ARGV[1])
local answer = {}
for place = 1, locks do
  local state = state_of(KEYS[place], locks)
  if KEYS[locks + place] then
    local intent = state_of(KEYS[locks + place], locks)
    if intent ~= -2 and (state == -2 or state[1] == 'shared') then
      state = {'announced', intent[2], intent[1] == 'held' and intent[3] or ''}
    end
  end
  answer[place] = state
end
return answer
