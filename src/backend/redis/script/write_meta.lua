-- Writes the state of a name, and the record of the calling node.

local function write_meta(state)
  if state.grace > 0 then
    redis.call('HSET', state.meta, GAPS_FIELD, struct.pack(GAPS, FORMAT_VERSION, state.grace, state.due, state.gap, state.span))
  elseif state.busy == 2 then
    redis.call('HDEL', state.meta, GAPS_FIELD)
  end
  state.busy = state.grace > 0 and 2 or state.queued > 0 and 1 or 0
  local record = struct.pack(STATE, FORMAT_VERSION, state.clock, state.now, state.token, state.shortest, state.longest, state.expires, state.sweep_at,
    state.mute, state.busy)
  if state.number > 0 then
    redis.call('HSET', state.meta, STATE_FIELD, record, state.node,
      struct.pack(NODE, FORMAT_VERSION, state.number, state.limit, state.lease, state.clock, state.own_queued))
  else
    redis.call('HSET', state.meta, STATE_FIELD, record)
  end
end
