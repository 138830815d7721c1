-- The records of other nodes that a call may need, read and checked before its first write.

local FIRST_HEADS = 2 -- a call that grants one ticket judges no more

local function parse_node(record, state, other)
  local _, number, limit, its_lease, heartbeat, queued = read_record(record, NODE, NODE_BYTES, state.meta, other)
  return {number = number, limit = limit, lease = its_lease, heartbeat = heartbeat, queued = queued, deadline = heartbeat + its_lease}
end

local function read_nodes(state)
  local nodes, heads, others = {}, nil, nil
  state.nodes = nodes
  if state.clock >= state.sweep_at and state.clock >= state.grace then
    -- The sweep forgets nodes: it needs all.
    local fields = redis.call('HGETALL', state.meta)
    for i = 1, #fields, 2 do
      local other = fields[i]
      if other ~= STATE_FIELD and other ~= GAPS_FIELD and other ~= state.node then nodes[other] = parse_node(fields[i + 1], state, other) end
    end
  elseif state.queued > 0 then
    heads = redis.call('ZRANGE', state.queue, 0, FIRST_HEADS - 1)
    state.heads, others = heads, {}
    for i, ticket in ipairs(heads) do others[i] = node_of(ticket) end
  end
  if state.number == 0 then
    others = others or {}
    for _, ticket in ipairs(state.tickets) do others[#others + 1] = node_of(ticket) end
  end
  if not others or #others == 0 then return end
  local records = redis.call('HMGET', state.meta, unpack(others))
  for i, other in ipairs(others) do
    if nodes[other] == nil and other ~= state.node then nodes[other] = records[i] and parse_node(records[i], state, other) end
  end
end

-- The record of a node that stands further behind in the queue. An unknown format version is no error any more, since the call has written:
-- the queue is blocked there, and the next call is refused.
local function node_record(state, other)
  local entry = state.nodes[other]
  if entry == nil then
    local record = redis.call('HMGET', state.meta, other)[1]
    local done, parsed = true, false
    if record then done, parsed = pcall(parse_node, record, state, other) end
    entry = done and parsed or record and {is_unknown = true} or false
    state.nodes[other] = entry
  end
  return entry
end

local function count_dequeued(state, other)
  state.queued = state.queued - 1
  if other == state.node then
    state.own_queued = math.max(0, state.own_queued - 1)
    return
  end
  local entry = node_record(state, other)
  if entry and not entry.is_unknown then entry.queued, entry.is_changed = math.max(0, entry.queued - 1), true end
end
