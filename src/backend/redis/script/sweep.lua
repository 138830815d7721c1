-- Once a longest lease: forgets nodes that have been silent for their lease, and their queue entries.

local MAX_ORPHANS = 2000

if state.clock >= state.sweep_at and state.grace == 0 then
  local alive, has_orphans, shortest, longest = {[state.node] = state.number > 0}, false, nil, nil
  if state.number > 0 then shortest, longest = state.lease, state.lease end
  for other, entry in pairs(state.nodes) do
    if not entry then
      alive[other] = false
    elseif entry.deadline < state.clock then
      call('HDEL', state.meta, other)
      state.nodes[other] = false
      has_orphans = has_orphans or entry.queued > 0
    else
      alive[other] = true
      shortest, longest = math.min(shortest or entry.lease, entry.lease), math.max(longest or entry.lease, entry.lease)
    end
  end
  if has_orphans and state.queued > 0 then
    for _, ticket in ipairs(call('ZRANGE', state.queue, 0, MAX_ORPHANS - 1)) do
      if not alive[node_of(ticket)] then state.queued = state.queued - call('ZREM', state.queue, ticket) end
    end
  end
  state.shortest, state.longest = shortest or state.shortest, longest or state.longest
  state.sweep_at = state.clock + state.longest
end
