-- Executes a batch. One MGET reads the records of all names, and one EXISTS for every few of the others shows which have no keys.
-- Then a fresh name costs one SET, and all releases together cost a DEL. Packing a record byte by byte costs as much as writing it, so that
-- the two most frequent calls put theirs together from parts: those that the call brings, and those that are the same for all.
local CALL, TICKET = '<ddHHHH', 'Hc0'
local ACQUIRE, RELEASE, OTHER, ONE, PARTS = 65, 82, 79, '<dddHc0', '<c16c8H' -- any other kind tries one ticket
local CHUNK = 16
local pack, unpack_numbers, sub, byte, redis_pcall = struct.pack, struct.unpack, string.sub, string.byte, redis.pcall
local data, at = ARGV[5], 1
local has_single = #KEYS > 3 * names
local base = has_single and names + 2 or 0 -- the keys of the general form follow
local GUARD, TOKEN = KEYS[names + 1], KEYS[names + 2]
local guard = 0 -- a call with a lower number is late, unless a record of this node has its own number
local floor_expires = 0 -- TIME at which the token key expires
local deleted, latest_deleted, highest = {}, 0, 0
local only_single, singles, fresh, answers -- a table costs too much for one name
local held_middle, held_end, free, fresh_answer -- parts

local function read_guard(values, from)
  local latest, token = values[from + 1], values[from + 2]
  if latest and #latest == 8 then guard = unpack_numbers('<d', latest) end
  if token and #token == 16 then floor, floor_expires = unpack_numbers('<dd', token) end
end
local function is_mine(single) return type(single) == 'string' and sub(single, SINGLE_BYTES + 1) == node end

if has_single and names == 1 then
  only_single = redis_pcall('GET', KEYS[1])
  if not is_mine(only_single) then read_guard(redis.call('MGET', GUARD, TOKEN), 0) end
elseif has_single then
  singles, fresh, answers = redis.call('MGET', unpack(KEYS, 1, names + 2)), {}, {}
  read_guard(singles, names)
  local ask, chunk, size = {}, {}, 0
  for i = 1, names do
    if not singles[i] then
      local key = base + 3 * i
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
  local ends, fresh_token = pack('<d', now + lease) .. node, pack('<d', math.max(floor + 1, micros))
  free = pack('<d', -1)
  held_middle, held_end = pack('<ddd', lease, now, now) .. fresh_token, ends
  fresh_answer = 'o' .. fresh_token .. 'h'
end

for i = 1, names do
  local kind, single, is_fresh, answer = byte(data, at), only_single, false, nil
  if singles then single, is_fresh = singles[i], fresh[i] end
  local numbers, ticket, length -- of a call with one ticket; the first two as parts of a record
  if names > 1 and kind ~= OTHER then
    numbers, ticket, length, at = unpack_numbers(PARTS, data, at + 1)
    at = at + length
  end

  -- As exchange_single does it, if the record exists and the lease clock and the token need no special treatment.
  if numbers then
    local record, expires, success
    if not single then
      if is_fresh and kind ~= RELEASE and unpack_numbers('<d', numbers) >= guard then
        record, expires, success = 'lone' .. numbers .. held_middle .. ticket .. held_end, hour_text, fresh_answer
      end
    elseif #single > SINGLE_BYTES then
      local mark, latest, _, its_lease, clock, last, token, holder = unpack_numbers('<c4dddddc8c8', single)
      local number = unpack_numbers('<d', numbers)
      if mark == 'lone' and its_lease == lease and clock == last and last <= now and number >= latest
        and sub(single, SINGLE_BYTES + 1) == node then
        if kind == RELEASE then
          if holder == ticket then
            deleted[#deleted + 1], answer = KEYS[i], 'f1'
            latest_deleted, highest = math.max(latest_deleted, number), math.max(highest, unpack_numbers('<d', token))
          end
        elseif holder == free and unpack_numbers('<d', token) < micros then
          record, expires, success = 'lone' .. numbers .. held_middle .. ticket .. held_end, hour_text, fresh_answer
        end
      end
    end
    if record then
      local done
      if single then
        done = redis_pcall('SET', KEYS[i], record, 'PX', expires)
      else
        done = redis_pcall('SET', KEYS[i], record, 'PX', expires, 'NX')
      end
      if done and not done.err then answer = success end
    end
  end

  if not answer then
    local number, limit, leaves, keeps, enters, tries, tickets
    if kind ~= OTHER then
      local _, first
      number, limit, _, first = unpack_numbers(ONE, data, numbers and at - length - 26 or 2)
      leaves, keeps, enters, tries, tickets = 0, 0, 0, 0, {first}
      if kind == RELEASE then leaves = 1 elseif kind == ACQUIRE then enters = 1 else tries = 1 end
    else
      number, limit, leaves, keeps, enters, tries, at = unpack_numbers(CALL, data, at + 1)
      local count = leaves + keeps + enters + tries
      tickets = {unpack_numbers('<' .. string.rep(TICKET, count), data, at)}
      at = tickets[count + 1]
    end
    local key = base + 3 * i
    local PERMITS, QUEUE, META, KEY = KEYS[key - 2], KEYS[key - 1], KEYS[key], has_single and KEYS[i]
    if number > 0 and number < guard and not is_mine(single) then
      answer = 's'
    elseif not single and not (is_fresh and number > 0 and keeps == 0) then
      answer = try_general(PERMITS, QUEUE, META, KEY, nil, tickets, number, limit, leaves, keeps, enters, tries)
    end
    answer = answer
      or exchange_single(KEY, single, tickets, number, limit, leaves, keeps, enters, tries)
      or try_general(PERMITS, QUEUE, META, KEY, single, tickets, number, limit, leaves, keeps, enters, tries)
    if names == 1 then return answer end
    if type(answer) == 'table' then answer = 'e' .. pack('<Hc0', #answer.err, answer.err) end
  end
  answers[i] = answer
end
if #deleted > 0 then
  -- When memory is full the others pass after the first, which always does.
  redis.call('DEL', unpack(deleted))
  redis.pcall('SET', GUARD, pack('<d', math.max(guard, latest_deleted)), 'PX', lease_text)
  local expires = math.max(floor_expires, now + lease)
  redis.pcall('SET', TOKEN, pack('<dd', math.max(floor, highest), expires), 'PX', string.format('%.0f', expires - now))
end
return table.concat(answers)
