-- Returns the state of a lock's keys, and changes nothing. The first ARGV[1] of KEYS are the lock's keys. If there are
-- more KEYS, these are the keys' intents, by which waiting writers keep new readers out. For a key that is free or held
-- by readers alone, but has an intent, the state is {'announced', ttl, value} of the intent.
local locks = tonumber(ARGV[1])
local answer = {}
for place = 1, locks do
  local told = tell(KEYS[place], locks)
  if KEYS[locks + place] then
    local word = tell(KEYS[locks + place], locks)
    if word ~= -2 and (told == -2 or told[1] == 'shared') then
      told = {'announced', word[2], word[1] == 'held' and word[3] or ''}
    end
  end
  answer[place] = told
end
return answer
