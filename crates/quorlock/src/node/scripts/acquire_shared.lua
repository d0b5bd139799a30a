-- Adds the reader ARGV[1] to each key, until ARGV[2] milliseconds from now.
--
-- If ARGV[3] is 'new', the first half of KEYS are the lock's keys, and the second half are the keys of waiting writers'
-- intents. The reader is added if each key is absent or has only readers, fewer than 1024, and no other client has an
-- intent. If the value is already one of the readers, the script returns an error.
--
-- If ARGV[3] is 'again', KEYS are the lock's keys, and intents are ignored. If the value is already one of the readers,
-- the reader ends ARGV[2] milliseconds from now, but not earlier than before. A key that holds the value as a writer's
-- becomes a reader's.
--
-- Returns 1 if the reader was added. Returns 0 if a key has another holder; then nothing is written.
local value, ttl, is_new = ARGV[1], tonumber(ARGV[2]), ARGV[3] == 'new'
local locks = is_new and #KEYS / 2 or #KEYS
local states = {}
for place = 1, locks do
  states[place] = read_key(KEYS[place], value)
  -- Each attempt has a value of its own, so the client has asked this server twice, as two nodes.
  if is_new and states[place].score then
    return redis.error_reply('SAMESERVER the value is already one of the readers')
  end
end
for _, state in ipairs(states) do
  if state.kind == 'other' or state.kind == 'text' and (is_new or not state.is_ours) then
    return 0
  end
  if state.kind == 'readers' and not state.is_ours and redis.call('ZCOUNT', state.key, state.time, '+inf') >= 1024 then
    return 0
  end
  state.to = math.max(state.ends or 0, state.time + ttl)
end
for place = locks + 1, #KEYS do
  local intent = redis.pcall('GET', KEYS[place])
  if intent and intent ~= value then
    -- Any error but WRONGTYPE shows nothing about the key, so the script returns the error.
    if type(intent) == 'table' and intent.err and not string.find(intent.err, 'WRONGTYPE', 1, true) then
      return intent
    end
    return 0
  end
end
return add(states, value)
