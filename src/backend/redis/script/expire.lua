-- Purges permits whose deadline is over.
--
-- After a gap nothing is purged until `grace`, so that live nodes can renew. Then permits are purged that were due at the gap (`due`) and
-- were not renewed. The grace is half the longest lease, or the gap if that is shorter: a gap endangers only leases up to twice its length, and
-- each renews well within half of itself. A gap meanwhile (the last at `gap`, the longest `span`) does not prolong it: it gets its own later.

local function purge(state, deadline)
  state.in_use = state.in_use - redis.call('ZREMRANGEBYSCORE', state.permits, '-inf', deadline)
end

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
