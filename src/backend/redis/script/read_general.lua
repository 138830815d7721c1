-- exchange_general(state): reads what the uncontended path has not, and checks it before the first write: the records of other nodes that the
-- call may need, and the gaps record.
--
-- An error half-way leaves a valid state: a permit is added before its queue entry is removed, and the state is written last. The first write
-- is one that passes when memory is full (ZREM, PEXPIRE); after it, so does the rest.

local call = redis.call
if state.busy == 2 then
  local gaps, _ = call('HMGET', state.meta, GAPS_FIELD)[1], nil
  if gaps then _, state.grace, state.due, state.gap, state.span = read_record(gaps, GAPS, GAPS_BYTES, state.meta, GAPS_FIELD) end
end
if state.queued == 0 then state.own_queued = 0 end
local nodes, heads, others = {}, nil, nil
state.nodes = nodes
state.tokens, state.granted, state.pushes = {}, {}, {} -- of all grants; own tickets; what to push to each node
if state.clock >= state.sweep_at and state.clock >= state.grace then
  -- The sweep forgets nodes: it needs all.
  local fields = call('HGETALL', state.meta)
  for i = 1, #fields, 2 do
    local other = fields[i]
    if other ~= STATE_FIELD and other ~= GAPS_FIELD and other ~= state.node then nodes[other] = parse_node(fields[i + 1], state, other) end
  end
elseif state.queued > 0 then
  -- A call that releases at most one ticket needs at most this many queue heads.
  heads = call('ZRANGE', state.queue, 0, state.releases > 0 and 1 or 0)
  state.heads, others = heads, {}
  for i, ticket in ipairs(heads) do others[i] = node_of(ticket) end
end
if state.number == 0 then
  others = others or {}
  for _, ticket in ipairs(state.tickets) do others[#others + 1] = node_of(ticket) end
end
if others and #others > 0 then
  local records = call('HMGET', state.meta, unpack(others))
  for i, other in ipairs(others) do
    if nodes[other] == nil and other ~= state.node then nodes[other] = records[i] and parse_node(records[i], state, other) end
  end
end
