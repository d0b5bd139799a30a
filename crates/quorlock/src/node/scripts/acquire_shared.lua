-- Adds a reader: ARGV[1] counts for ARGV[2] milliseconds under each key. If ARGV[3] is 'new', the first half of KEYS are
-- the keys, and the others are where writers that wait leave word: the reader is added if each key is absent or
-- held by readers alone, fewer than 1024, and nobody else has left word; if it is among the readers already, that
-- is an error. If ARGV[3] is 'again', KEYS are the keys, word is not heeded, and where the reader is already
-- it counts for so long from now, never shorter than it would; a key that holds it as a writer's becomes a reader's.
-- Answers 1 added, 0 some key is another's; then nothing is written.
local value, ttl, is_new = ARGV[1], tonumber(ARGV[2]), ARGV[3] == 'new'
local locks = is_new and #KEYS / 2 or #KEYS
local found = {}
for place = 1, locks do
  found[place] = look_at(KEYS[place], value)
  -- A value is used for one attempt, so that has asked this server before, as another node.
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
    -- An error other than that of another type says nothing about the key: it is handed on.
    if type(word) == 'table' and word.err and not string.find(word.err, 'WRONGTYPE', 1, true) then
      return word
    end
    return 0
  end
end
return add(found, value)
