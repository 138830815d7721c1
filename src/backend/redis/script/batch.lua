-- Executes a batch. Names in the single-holder form, and those without keys, are handled here: one MGET reads all records,
-- and one EXISTS for every few names shows which have no keys. A release then costs one SET, and so does the acquisition of
-- a fresh name.
local CALL, TICKET = '<ddHHHHHc0', 'Hc0' -- CALL: with its first ticket
local SINGLE_BYTES, CHUNK = 68, 8
local pack, unpack_numbers = struct.pack, struct.unpack

-- A key of another type reads as if it were absent, and is not overwritten. When memory is full the record passes after a write
-- that always does.
local function write_record(key, record, expires, exists)
  local done
  for _ = 1, 2 do
    if exists then
      done = redis.pcall('SET', key, record, 'PX', expires)
    else
      done = redis.pcall('SET', key, record, 'PX', expires, 'NX')
    end
    if not done or not done.err then return done end
    redis.pcall('PEXPIRE', key, expires)
  end
  return done
end

local data, at, answers = ARGV[5], 1, {}
local has_single = #KEYS == 4 * names
local singles, fresh, keys = {}, {}, 0 -- keys: index of the last single-holder key

if has_single then
  keys = names
  if names == 1 then
    singles[1] = redis.pcall('GET', KEYS[1])
  else
    singles = redis.call('MGET', unpack(KEYS, 1, names))
    local ask, chunk, size = {}, {}, 0
    for i = 1, names do
      if not singles[i] then
        local key = keys + 3 * i
        size = size + 1
        chunk[size] = i
        ask[3 * size - 2], ask[3 * size - 1], ask[3 * size] = KEYS[key - 2], KEYS[key - 1], KEYS[key]
      end
      if size == CHUNK or (size > 0 and i == names) then
        local absent = redis.call('EXISTS', unpack(ask, 1, 3 * size)) == 0
        for j = 1, size do fresh[chunk[j]] = absent end
        size = 0
      end
    end
  end
end

for i = 1, names do
  local number, limit, leaves, keeps, enters, tries, first, tickets
  number, limit, leaves, keeps, enters, tries, first, at = unpack_numbers(CALL, data, at)
  local named = keeps + enters + tries -- besides those to release
  if leaves + named > 1 then
    local more = leaves + named - 1
    tickets = {first, unpack_numbers('<' .. string.rep(TICKET, more), data, at)}
    at = tickets[more + 2]
  end

  local single, answer = singles[i], nil
  local applies = fresh[i] and number > 0 and keeps == 0 and named < 2
  local clock, last, token, holder = now, now, 0, -1
  if single then
    if type(single) == 'table' then
      answer = single -- an error
    elseif #single < SINGLE_BYTES or string.sub(single, 1, 4) ~= 'lone' then
      answer = redis.error_reply('INCOMPATIBLE lone was written by another version')
    else
      local latest, its_lease, _
      latest, _, its_lease, clock, last, token, holder = unpack_numbers('<ddddddd', single, 5)
      local is_mine = string.sub(single, SINGLE_BYTES + 1) == node
      applies = is_mine and lease == its_lease and named < 2
      if is_mine and number < latest then answer, applies = 's', false end
    end
  elseif not applies then
    local key = keys + 3 * i
    answer = try_general(KEYS[key - 2], KEYS[key - 1], KEYS[key], has_single and KEYS[i], nil, tickets or {first},
      number, limit, leaves, keeps, enters, tries)
    applies = not answer
  end

  -- No other node has called. As long as the call concerns the only permit, or there is none, one write does it all. A second
  -- permit needs the general form.
  if applies then
    local letters, ticket = '', named == 1 and tonumber(tickets and tickets[leaves + 1] or first)
    for j = 1, leaves do
      if tonumber(tickets and tickets[j] or first) == holder then
        holder, letters = -1, letters .. '1'
      else
        letters = letters .. '0'
      end
    end
    if keeps == 0 and ticket and holder < 0 then holder, token = ticket, math.max(token + 1, micros) end
    if ticket then letters = letters .. (ticket == holder and 'h' or 'g') end
    if holder < 0 or ticket == holder then
      if now > last then clock = clock + now - last end
      local key, expires = KEYS[i], holder < 0 and lease_text or hour_text
      local record = pack('<c4ddddddddc0', 'lone', number, limit, lease, clock, now, token, holder, clock + lease, node)
      local done = write_record(key, record, expires, single)
      if not done then
        answer = redis.pcall('GET', key)
      elseif done.err then
        answer = done
      elseif holder < 0 then
        answer = 'f' .. letters
      else
        answer = pack('<c1dc0', 'o', token, letters)
      end
    end
  end

  if not answer then
    local key = keys + 3 * i
    answer = try_general(KEYS[key - 2], KEYS[key - 1], KEYS[key], has_single and KEYS[i], single, tickets or {first},
      number, limit, leaves, keeps, enters, tries)
  end
  if names > 1 and type(answer) == 'table' then answer = 'e' .. pack('<Hc0', #answer.err, answer.err) end
  answers[i] = answer
end
return names == 1 and answers[1] or table.concat(answers)
