-- Purges permits whose deadline is over, and forgets nodes that have been silent.
--
-- After a gap nothing is purged for a while (until `grace`), so that live nodes can renew; then goes what was due at the gap (`due`) and was
-- not renewed. That while is half the longest lease, or the gap if that is shorter: a gap endangers only leases up to twice its length, and
-- each renews well within half of itself. A gap meanwhile (the last at `gap`, the longest `span`) does not prolong it: it gets its own later.

local MAX_ORPHANS = 2000

local function purge(state, deadline)
  state.in_use = state.in_use - redis.call('ZREMRANGEBYSCORE', state.permits, '-inf', deadline)
end

local function expire(state)
  local clock, wanted = state.clock, state.acquires + state.tries
  if state.in_use == 0 and state.queued == 0 then
    state.grace, state.span = 0, 0
  else
    while state.grace > 0 and clock >= state.grace do
      purge(state, state.due)
      if state.gap > state.due then
        state.due, state.grace, state.span = state.gap, state.gap + state.span, 0
      else
        state.grace = 0
      end
    end
    if state.gapped then
      local pause = state.known and math.min(state.passed, state.longest / 2) or state.longest / 2
      state.gap = clock
      if state.grace == 0 then
        state.due, state.grace, state.span = clock, clock + pause, 0
      else
        state.span = math.max(state.span, pause)
      end
    end
  end
  local is_full = wanted > 0 and state.in_use + wanted > state.limit
  if state.grace == 0 and (state.queued > 0 or clock >= state.sweep_at or is_full) then purge(state, clock) end
  if state.number > 0 then
    state.shortest, state.longest = math.min(state.shortest, state.lease), math.max(state.longest, state.lease)
  end
end

-- Once a longest lease: forgets nodes that have been silent for their lease, and the queue entries that they left behind.
local function sweep(state)
  if state.clock < state.sweep_at or state.grace > 0 then return end
  local alive, has_orphans, shortest, longest = {[state.node] = state.number > 0}, false, nil, nil
  if state.number > 0 then shortest, longest = state.lease, state.lease end
  for other, entry in pairs(state.nodes) do
    if not entry then
      alive[other] = false
    elseif entry.deadline < state.clock then
      redis.call('HDEL', state.meta, other)
      state.nodes[other] = false
      has_orphans = has_orphans or entry.queued > 0
    else
      alive[other] = true
      shortest, longest = math.min(shortest or entry.lease, entry.lease), math.max(longest or entry.lease, entry.lease)
    end
  end
  if has_orphans and state.queued > 0 then
    for _, ticket in ipairs(redis.call('ZRANGE', state.queue, 0, MAX_ORPHANS - 1)) do
      if not alive[node_of(ticket)] then state.queued = state.queued - redis.call('ZREM', state.queue, ticket) end
    end
  end
  state.shortest, state.longest = shortest or state.shortest, longest or state.longest
  state.sweep_at = state.clock + state.longest
end
