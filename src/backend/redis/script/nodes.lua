-- The records of other nodes.

local function parse_node(record, state, other)
  local _, number, limit, its_lease, heartbeat, queued = read_record(record, NODE, NODE_BYTES, state.meta, other)
  return {number = number, limit = limit, lease = its_lease, heartbeat = heartbeat, queued = queued, deadline = heartbeat + its_lease}
end

-- Returns the record of a node whose ticket is further behind in the queue. An unknown format is no error any more, since the call has
-- written: the queue is blocked there, and the next call is refused.
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
