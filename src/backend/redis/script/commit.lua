-- Writes the state last, and pushes grants to the nodes of their tickets.

if state.number > 0 or state.known then -- administrative calls do not create state
  -- Keys expire an hour after the longest lease while a ticket is held or queued, never less then; else after one lease.
  local is_idle, grows = state.in_use == 0 and state.queued == 0, false
  if is_idle then
    state.grace, state.expires = 0, state.now + state.longest
  elseif state.expires < state.now + HOUR + state.longest then
    grows, state.expires = true, state.now + HOUR + 2 * state.longest
  end
  for other, entry in pairs(state.nodes) do
    if entry and entry.is_changed then
      call('HSET', state.meta, other, struct.pack(NODE, FORMAT_VERSION, entry.number, entry.limit, entry.lease, entry.heartbeat, entry.queued))
    end
  end
  write_meta(state)
  if next(state.pushes) then
    -- The channels, and the name of this queue in them, are derived from its key: prefix:kind:{name}.
    local prefix, kind, name = string.match(state.permits, '^(.*):(%a+):{(.*)}$')
    local before = state.mute
    for other, grants in pairs(state.pushes) do
      local answer = redis.pcall('PUBLISH', prefix .. PUSH_INFIX .. other, kind .. ':' .. name .. grants)
      state.mute = type(answer) == 'table' and answer.err and 1 or 0
    end
    if state.mute ~= before then write_meta(state) end
  end
  local left = state.expires - state.now
  if is_idle or grows then call('PEXPIRE', state.meta, left) end
  if state.in_use > 0 and (grows or state.is_first_permit) then call('PEXPIRE', state.permits, left) end
  if state.queued > 0 and (grows or state.is_first_entry) then call('PEXPIRE', state.queue, left) end
end
