-- Says what keys hold, without changing anything. The first ARGV[1] of KEYS are a lock's keys. If there are more,
-- the others are where writers that wait leave word, in the same order: then of a key that is free, or held by
-- readers alone, that word is told instead, whosever it is, as {'announced', ttl, value}. Answers {told...}.
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
