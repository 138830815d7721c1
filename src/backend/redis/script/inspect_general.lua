-- What `inspect` reads of a name in the general form.

local MAX_HEADS = 10000
local CHUNK = 500

-- Returns the lease clock, and the deadline of each node.
local function read_meta(meta)
  local clock, deadlines, fields = now, {}, redis.call('HGETALL', meta)
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
local function read_queue(queue, most, clock, deadlines)
  local count, list, rank = redis.call('ZCARD', queue), {}, 0
  local total = count
  while rank < count and rank < MAX_HEADS do
    local tickets = redis.call('ZRANGE', queue, rank, rank + CHUNK - 1)
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
