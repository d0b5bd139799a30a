-- Adds the reader ARGV[1] to a lock's keys for ARGV[2] milliseconds.
-- ARGV[3] is 'new': the first half of KEYS are the lock's keys, the second half their intents, by which waiting writers
-- keep new readers out. Each key must be absent or have fewer than 1024 readers and no other holder, and no intent may
-- have another value. If ARGV[1] is among the readers already, the answer is an error.
-- ARGV[3] is 'again': KEYS are the lock's keys, and intents are ignored. A reader that is there ends no earlier than
-- before. A key that holds ARGV[1] as a writer's value becomes a reader's.
-- Returns 1, or 0 if a holder or an intent is in the way; nothing is written then.
local value, ttl, is_new = ARGV[1], tonumber(ARGV[2]), ARGV[3] == 'new'
local locks = is_new and #KEYS / 2 or #KEYS
local found = {}
for place = 1, locks do
  found[place] = look_at(KEYS[place], value)
  -- Each attempt has its own value, so this attempt has asked this server before, as another node.
  if is_new and found[place].score then
    return redis.error_reply('SAMESERVER this value is among the readers already')
  end
end
for _, it in ipairs(found) do
  if it.kind == 'other' or it.kind == 'text' and (is_new or not it.is_ours) then
    return 0
  end
  if it.kind == 'readers' and not it.is_ours and redis.call('ZCOUNT', it.key, it.time, '+inf') >= 1024 then
    return 0
  end
  it.to = math.max(it.ends or 0, it.time + ttl)
end
for place = locks + 1, #KEYS do
  local word = redis.pcall('GET', KEYS[place])
  if word and word ~= value then
    -- An error other than WRONGTYPE says nothing about the key, so it is returned.
    if type(word) == 'table' and word.err and not string.find(word.err, 'WRONGTYPE', 1, true) then
      return word
    end
    return 0
  end
end
return add(found, value)
