-- Lists holders and queued tickets. Changes nothing: the lease clock is only computed, and what has expired by it is omitted.
--
-- KEYS  the keys of the general form, then the single-holder key unless in a cluster    ARGV  1 how many tickets of each to list
-- reply {in use, queued, {ticket, ms left, ...} oldest deadline first, the same of queued tickets in their order}

local call = redis.call
local MAX_HEADS = 10000
local CHUNK = 500
local permits, queue, meta, single_key = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local most = tonumber(ARGV[1])

local function inspect_single(record)
  local _, _, _, _, clock, read_at, _, holder, deadline, owner = read_single(record, single_key)
  local left = deadline - clock - math.max(0, now - read_at)
  if holder == FREE or left <= 0 then return {0, 0, {}, {}} end
  return {1, 0, {string.format('%s-%.0f', owner, holder), left}, {}}
end

-- Returns the lease clock, and the deadline of each node.
local function read_meta()
  local clock, deadlines, fields = now, {}, call('HGETALL', meta)
  for i = 1, #fields, 2 do
    local field, record = fields[i], fields[i + 1]
    if field == STATE_FIELD then
      local _, its_clock, read_at = read_record(record, STATE, STATE_BYTES, meta, STATE_FIELD)
      clock = its_clock + math.max(0, now - read_at)
    elseif field == GAPS_FIELD then
      read_record(record, GAPS, GAPS_BYTES, meta, GAPS_FIELD)
    else
      local _, _, _, lease, heartbeat = read_record(record, NODE, NODE_BYTES, meta, field)
      deadlines[field] = heartbeat + lease
    end
  end
  return clock, deadlines
end

-- Returns the count of queued tickets of live nodes, and a list of the first ones.
local function read_queue(clock, deadlines)
  local count, list, rank = call('ZCARD', queue), {}, 0
  local total = count
  while rank < count and rank < MAX_HEADS do
    local tickets = call('ZRANGE', queue, rank, rank + CHUNK - 1)
    if #tickets == 0 then break end
    for _, ticket in ipairs(tickets) do
      local deadline = deadlines[node_of(ticket)]
      if not deadline or deadline <= clock then
        total = total - 1
      elseif #list < 2 * most then
        list[#list + 1], list[#list + 2] = ticket, deadline - clock
      end
    end
    rank = rank + #tickets
  end
  return total, list
end

local function inspect()
  local single = single_key and call('GET', single_key)
  if single then return inspect_single(single) end
  local clock, deadlines = read_meta()
  local alive = '(' .. string.format('%.0f', clock)
  local holders = call('ZRANGE', permits, alive, '+inf', 'BYSCORE', 'LIMIT', 0, most, 'WITHSCORES')
  for i = 2, #holders, 2 do holders[i] = tonumber(holders[i]) - clock end
  local queued, list = read_queue(clock, deadlines)
  return {call('ZCOUNT', permits, alive, '+inf'), queued, holders, list}
end

return (attempt(inspect))
