-- Functions for the keys of readers. This text precedes each script that uses them. The readers of a key are a sorted
-- set: a member is a reader's value, and its score is the time at which the reader ends, in milliseconds of this
-- server's clock. A reader counts until that time has passed. The key expires when its last reader ends.

-- Returns this server's time of day in milliseconds. On some servers the clock moves while a script runs.
local function clock()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Returns the state of `key`, a table with these fields:
--   kind     'none', 'text', 'readers' or 'other'
--   ttl      the reply of PTTL
--   time     the server's time, read after PTTL
--   last     the end of the last reader
--   next     the end of the second last reader; if `value` has a score, the end of the last reader except `value`
--   score    the end of the reader `value`, also if it has passed
--   is_ours  whether the text is `value`, or `value` is a reader that counts
--   ends     if `is_ours`: the end; nil for a text without an expiry
local function read_key(key, value)
  local ttl = redis.call('PTTL', key)
  local time = clock()
  if ttl == -2 then
    return {key = key, kind = 'none', ttl = ttl, time = time}
  end
  local readers = redis.pcall('ZRANGE', key, -2, -1, 'WITHSCORES')
  if readers.err then
    -- Any error but WRONGTYPE shows nothing about the key. The second call raises the same error.
    if not string.find(readers.err, 'WRONGTYPE', 1, true) then
      redis.call('ZRANGE', key, -2, -1, 'WITHSCORES')
    end
    local text = redis.pcall('GET', key)
    if type(text) == 'table' then
      if not string.find(text.err, 'WRONGTYPE', 1, true) then
        redis.call('GET', key)
      end
      return {key = key, kind = 'other', ttl = ttl, time = time}
    end
    -- The ttl was read before the clock, so `ends` is not earlier than the key's expiry.
    return {
      key = key, kind = 'text', ttl = ttl, time = time, is_ours = text == value, ends = ttl >= 0 and ttl + time or nil
    }
  end
  if #readers == 0 then
    -- The key has expired since PTTL.
    return {key = key, kind = 'none', ttl = -2, time = time}
  end
  local last = tonumber(readers[#readers])
  local before = time
  if last < before + ttl - 1 then
    -- The clock may have moved since the expiry was read.
    before = clock()
    ttl = redis.call('PTTL', key)
    time = clock()
  end
  -- A sorted set that does not expire with its largest score belongs to another program.
  if ttl < 0 or last < before + ttl - 1 or time + ttl + 1 < last then
    return {key = key, kind = 'other', ttl = ttl, time = time}
  end
  -- symfony/lock stores its locks in sorted sets of this form. The member '__write__' marks an exclusive lock.
  if redis.call('ZSCORE', key, '__write__') then
    return {key = key, kind = 'other', ttl = ttl, time = time}
  end
  local score, next
  if readers[1] == value then
    score, next = tonumber(readers[2]), tonumber(readers[4])
  elseif readers[3] == value then
    score, next = last, tonumber(readers[2])
  elseif readers[3] then
    score, next = tonumber(redis.call('ZSCORE', key, value) or nil), last
  end
  local is_ours = score and score >= time
  return {
    key = key, kind = 'readers', ttl = ttl, time = time, last = last, next = next, score = score,
    is_ours = is_ours, ends = is_ours and score or nil
  }
end

-- Sorts the states, texts first, because a missing right to DEL shows only at the call.
local function texts_first(states)
  if #states == 1 then
    return states
  end
  local sorted = {}
  for _, state in ipairs(states) do
    if state.kind == 'text' then
      table.insert(sorted, state)
    end
  end
  for _, state in ipairs(states) do
    if state.kind ~= 'text' then
      table.insert(sorted, state)
    end
  end
  return sorted
end

-- Checks by a command that changes nothing whether `value` may be added to a key. Returns an error or nil.
local function try_to_add(state, value)
  local reply = redis.pcall('ZADD', state.key, 'XX', state.score or 0, value)
  -- A text gives WRONGTYPE, which shows that the user has the right.
  if type(reply) == 'table' and not (state.kind == 'text' and string.find(reply.err, 'WRONGTYPE', 1, true)) then
    return reply
  end
end

-- Makes `value` a reader of each of these keys, until the time `to` of the key's state. Removes expired readers. A
-- missing right must show before the first change, because a half-changed key might expire too late or never. So each
-- command is first called in a form that changes nothing. A server whose memory is full refuses a command that may
-- need memory, unless the script has made another write before. So a new reader is refused there, and a present reader
-- is extended. Returns 1, or an error.
local function add(states, value)
  for _, state in ipairs(states) do
    local failure = not state.is_ours and try_to_add(state, value)
    if failure then
      return failure
    end
    if state.kind == 'readers' then
      redis.call('ZREMRANGEBYSCORE', state.key, '-inf', string.format('(%.0f', state.time))
      redis.call('PEXPIREAT', state.key, math.max(state.last, state.time + 1))
    else
      redis.call('PEXPIREAT', state.key, state.to)
    end
    failure = state.is_ours and try_to_add(state, value)
    if failure then
      return failure
    end
  end
  for _, state in ipairs(texts_first(states)) do
    if state.kind == 'text' then
      redis.call('DEL', state.key)
    end
    redis.call('ZADD', state.key, state.to, value)
    redis.call('PEXPIREAT', state.key, math.max(state.to, state.last or 0))
  end
  return 1
end

-- Returns the state of `key`, one of `count` keys, for the client: -2 if the key is absent, {'held', ttl, value},
-- {'other', ttl}, or {'shared', ttl, number of readers, value, ttl, value, ttl...}. The list has as many readers as fit
-- into the answer, those with the latest ends, in the order of their ends.
local function state_of(key, count)
  local ttl = redis.call('PTTL', key)
  if ttl == -2 then
    return ttl
  end
  local value = redis.pcall('GETRANGE', key, 0, 511)
  if type(value) == 'string' then
    return {'held', ttl, value}
  end
  -- Any error but WRONGTYPE shows nothing about the key. The second call raises the same error.
  if not string.find(value.err, 'WRONGTYPE', 1, true) then
    redis.call('GETRANGE', key, 0, 511)
  end
  -- A client without readers needs no rights to the commands for readers, so a failed TYPE means another type.
  if redis.pcall('TYPE', key).ok ~= 'zset' then
    return {'other', ttl}
  end
  local state = read_key(key, '')
  if state.kind ~= 'readers' then
    return {'other', ttl}
  end
  local readers = redis.call('ZCOUNT', key, state.time, '+inf')
  if readers == 0 then
    -- The last reader has ended since PTTL.
    return -2
  end
  local listed = redis.call('ZRANGE', key, -64, -1, 'WITHSCORES')
  local first, room = #listed + 1, 65536 / count
  while first > 1 and tonumber(listed[first - 1]) >= state.time do
    room = room - math.min(#listed[first - 2], 512) - 32
    if room < 0 then
      break
    end
    first = first - 2
  end
  local answer = {'shared', state.ttl, readers}
  for place = first, #listed, 2 do
    table.insert(answer, string.sub(listed[place], 1, 512))
    table.insert(answer, tonumber(listed[place + 1]) - state.time)
  end
  return answer
end

