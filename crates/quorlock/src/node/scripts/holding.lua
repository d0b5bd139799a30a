-- What keys hold: this text comes before those of the scripts that deal with readers. Readers of a key are a
-- sorted set: each member is a holder's value, and its score the time at which it ends, in milliseconds of
-- this server's clock; it counts as long as that time is not over. The key expires when the last of them ends.

-- This server's time of day in milliseconds. Some servers' clock moves while a script runs.
local function clock()
  local time = redis.call('TIME')
  return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- Says what `key` holds: its kind, 'none', 'text', 'readers' or 'other'; its `ttl` as PTTL has it; a `time` that was
-- read after that; and of readers when the `last` of them ends, and the `next` to last. `is_ours`: the text is
-- `value`, or that is a reader that counts; then it counts until `ends`, which a text without expiry does not have. A
-- reader's `score` tells that it is there, also if it has ended; then `next` is the end of the last of the others.
local function look_at(key, value)
  local ttl = redis.call('PTTL', key)
  local time = clock()
  if ttl == -2 then
    return {key = key, kind = 'none', ttl = ttl, time = time}
  end
  local readers = redis.pcall('ZRANGE', key, -2, -1, 'WITHSCORES')
  if readers.err then
    -- An error other than that of another type says nothing about the key: it is handed on, for it comes again.
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
    -- The expiry was read before the clock: so it is not earlier than that of the key.
    return {
      key = key, kind = 'text', ttl = ttl, time = time, is_ours = text == value, ends = ttl >= 0 and ttl + time or nil
    }
  end
  if #readers == 0 then
    -- It has expired since.
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
  -- A sorted set that does not expire with its largest score is not of this family.
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

-- The keys that were looked at, texts first: whether these may be deleted shows only when it is done.
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

-- Whether `value` may be added to a key, by a command that changes nothing. Returns an error, or nothing.
local function try_to_add(it, value)
  local tried = redis.pcall('ZADD', it.key, 'XX', it.score or 0, value)
  -- A text cannot be added to; that it is allowed is all there is to know.
  if type(tried) == 'table' and not (it.kind == 'text' and string.find(tried.err, 'WRONGTYPE', 1, true)) then
    return tried
  end
end

-- Makes `value` a reader of the keys that were looked at, each until the time `to`. Readers that have ended are
-- dropped. What is not allowed must fail before anything is done, for a key that is left halfway might never expire, or
-- too late: so each command is given first such that it changes nothing. A server whose memory is full refuses a command
-- that may need more, unless another write came before it in the script. So a new reader is refused there, and one
-- that holds the lock goes on. Returns 1, or an error.
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

-- Says what `key`, one of `count`, holds, for the answer: -2 nothing, {'held', ttl, value}, {'other', ttl}, or
-- {'shared', ttl, readers, value, its ttl...} with as many of the readers as there is room for: the last of them, in
-- the order in which they end.
local function tell(key, count)
  local ttl = redis.call('PTTL', key)
  if ttl == -2 then
    return ttl
  end
  local value = redis.pcall('GETRANGE', key, 0, 511)
  if type(value) == 'string' then
    return {'held', ttl, value}
  end
  -- An error other than that of another type says nothing about the key: it is handed on, for it comes again.
  if not string.find(value.err, 'WRONGTYPE', 1, true) then
    redis.call('GETRANGE', key, 0, 511)
  end
  -- Who only ever has locks of its own need not have the rights to look closer.
  if redis.pcall('TYPE', key).ok ~= 'zset' then
    return {'other', ttl}
  end
  local it = look_at(key, '')
  if it.kind ~= 'readers' then
    return {'other', ttl}
  end
  local readers = redis.call('ZCOUNT', key, it.time, '+inf')
  if readers == 0 then
    -- The last of them has ended while this script ran.
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

