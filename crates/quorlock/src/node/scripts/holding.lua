-- Functions for readers, in front of the scripts that use them. The readers of a key are a sorted set: each member is a
-- reader's value, and its score the reader's end in milliseconds of this server's clock. The key expires with the last.

-- This server's time of day in milliseconds. On some servers it advances while a script runs.
local function clock()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Returns the state of `key`. kind: 'none', 'text', 'readers' or 'other'. ttl: as PTTL returns it. time: read after
-- ttl. is_ours: the text is `value`, or `value` is a reader that has not ended; ends: its end, nil if the key never
-- expires. For readers, last: the largest end; score: the end of the reader `value`, even if past; next: the largest
-- end of the other readers.
local function look_at(key, value)
  local ttl = redis.call('PTTL', key)
  local time = clock()
  if ttl == -2 then
    return {key = key, kind = 'none', ttl = ttl, time = time}
  end
  local readers = redis.pcall('ZRANGE', key, -2, -1, 'WITHSCORES')
  if readers.err then
    -- An error other than WRONGTYPE says nothing about the key. The same call raises it again and ends the script.
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
    -- The ttl was read before the clock, so this end is not before the key's expiry.
    return {
      key = key, kind = 'text', ttl = ttl, time = time, is_ours = text == value, ends = ttl >= 0 and ttl + time or nil
    }
  end
  if #readers == 0 then
    -- The key has expired after PTTL.
    return {key = key, kind = 'none', ttl = -2, time = time}
  end
  local last = tonumber(readers[#readers])
  local before = time
  if last < before + ttl - 1 then
    -- The clock may have advanced since PTTL.
    before = clock()
    ttl = redis.call('PTTL', key)
    time = clock()
  end
  -- A sorted set that does not expire with its largest score is not one of readers.
  if ttl < 0 or last < before + ttl - 1 or time + ttl + 1 < last then
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

-- Returns the keys with texts first: only a DEL itself shows whether the user may delete a text.
local function texts_first(found)
  if #found == 1 then
    return found
  end
  local sorted = {}
  for _, it in ipairs(found) do
    if it.kind == 'text' then
      table.insert(sorted, it)
    end
  end
  for _, it in ipairs(found) do
    if it.kind ~= 'text' then
      table.insert(sorted, it)
    end
  end
  return sorted
end

-- Checks the right to add `value` to a key, by a command that changes nothing. Returns an error, or nothing.
local function try_to_add(it, value)
  local tried = redis.pcall('ZADD', it.key, 'XX', it.score or 0, value)
  -- WRONGTYPE for a text shows that the user has the right.
  if type(tried) == 'table' and not (it.kind == 'text' and string.find(tried.err, 'WRONGTYPE', 1, true)) then
    return tried
  end
end

-- Makes `value` a reader of these keys, each until the time `to`. Drops readers that have ended. A half-done change
-- might leave a key that expires too late or never. So each command is first called such that it changes nothing, and
-- fails if the user lacks the right. A server whose memory is full refuses a command that may need memory, unless the
-- script has written before. So it refuses a new reader, but extends a reader that holds the lock. Returns 1, or an
-- error.
local function add(found, value)
  for _, it in ipairs(found) do
    local refused = not it.is_ours and try_to_add(it, value)
    if refused then
      return refused
    end
    if it.kind == 'readers' then
      redis.call('ZREMRANGEBYSCORE', it.key, '-inf', string.format('(%.0f', it.time))
      redis.call('PEXPIREAT', it.key, math.max(it.last, it.time + 1))
    else
      redis.call('PEXPIREAT', it.key, it.to)
    end
    refused = it.is_ours and try_to_add(it, value)
    if refused then
      return refused
    end
  end
  for _, it in ipairs(texts_first(found)) do
    if it.kind == 'text' then
      redis.call('DEL', it.key)
    end
    redis.call('ZADD', it.key, it.to, value)
    redis.call('PEXPIREAT', it.key, math.max(it.to, it.last or 0))
  end
  return 1
end

-- Returns the state of `key`, one of `count` keys, for the answer: -2 if absent, {'held', ttl, value}, {'other', ttl},
-- or {'shared', ttl, readers, value, its ttl...} with as many readers as there is room for: those that end last.
local function tell(key, count)
  local ttl = redis.call('PTTL', key)
  if ttl == -2 then
    return ttl
  end
  local value = redis.pcall('GETRANGE', key, 0, 511)
  if type(value) == 'string' then
    return {'held', ttl, value}
  end
  -- An error other than WRONGTYPE says nothing about the key. The same call raises it again and ends the script.
  if not string.find(value.err, 'WRONGTYPE', 1, true) then
    redis.call('GETRANGE', key, 0, 511)
  end
  -- pcall, because a user who never shares locks may lack the rights to TYPE and the commands below.
  if redis.pcall('TYPE', key).ok ~= 'zset' then
    return {'other', ttl}
  end
  local it = look_at(key, '')
  if it.kind ~= 'readers' then
    return {'other', ttl}
  end
  local readers = redis.call('ZCOUNT', key, it.time, '+inf')
  if readers == 0 then
    -- The last reader has ended while this script ran.
    return -2
  end
  local listed = redis.call('ZRANGE', key, -64, -1, 'WITHSCORES')
  local first, room = #listed + 1, 65536 / count
  while first > 1 and tonumber(listed[first - 1]) >= it.time do
    room = room - math.min(#listed[first - 2], 512) - 32
    if room < 0 then
      break
    end
    first = first - 2
  end
  local answer = {'shared', it.ttl, readers}
  for place = first, #listed, 2 do
    table.insert(answer, string.sub(listed[place], 1, 512))
    table.insert(answer, tonumber(listed[place + 1]) - it.time)
  end
  return answer
end

