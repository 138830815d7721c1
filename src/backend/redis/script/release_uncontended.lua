-- Releases permits while no ticket is queued. A call that needs more is returned to the general path.

local released
if busy == 0 and queued == 0 then
  released = ''
  for i = 1, releases do
    local was = call('ZREM', permits, owner .. tickets[i])
    in_use, released = in_use - was, released .. (was == 1 and '1' or '0')
  end
end
if not released or number == 0 or renews > 0 or (wanted > 0 and in_use + wanted > limit) or clock >= sweep_at
  or (in_use > 0 and gapped) then
  return nil, {
    number = number, limit = limit, releases = releases, renews = renews, acquires = state.acquires, tries = state.tries,
    tickets = tickets, key = key, permits = permits, queue = queue, meta = meta, owner = owner, known = known, clock = clock, token = token,
    shortest = shortest, longest = longest, expires = expires, sweep_at = sweep_at, mute = mute, busy = busy, passed = passed,
    gapped = gapped, in_use = in_use, queued = queued, own_queued = own_queued, released = released, lease = lease, now = now,
    micros = micros, node = node, grace = 0, due = 0, gap = 0, span = 0, grants_left = 256, heads_left = 1024,
  }
end
