-- Writes the state last, and pushes grants to the nodes of their tickets.

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

-- The channels, and the name of this queue in them, are derived from its key: prefix:kind:{name}.
local function push_grants(state)
  if not next(state.pushes) then return end
  local prefix, kind, name = string.match(state.permits, '^(.*):(%a+):{(.*)}$')
  local before = state.mute
  for other, grants in pairs(state.pushes) do
    local answer = redis.pcall('PUBLISH', prefix .. PUSH_INFIX .. other, kind .. ':' .. name .. grants)
    state.mute = type(answer) == 'table' and answer.err and 1 or 0
  end
  if state.mute ~= before then write_meta(state) end
end

local HOUR = 3600000

local function commit(state)
  if state.number == 0 and not state.known then return end -- administrative calls do not create state
  -- Keys expire an hour after the longest lease while a ticket is held or queued, never less then; else after one lease.
  local is_idle, grows = state.in_use == 0 and state.queued == 0, false
  if is_idle then
    state.grace, state.expires = 0, state.now + state.longest
  elseif state.expires < state.now + HOUR + state.longest then
    grows, state.expires = true, state.now + HOUR + 2 * state.longest
  end
  for other, entry in pairs(state.nodes) do
    if entry and entry.is_changed then
      redis.call('HSET', state.meta, other, struct.pack(NODE, FORMAT_VERSION, entry.number, entry.limit, entry.lease, entry.heartbeat, entry.queued))
    end
  end
  write_meta(state)
  push_grants(state)
  local left = state.expires - state.now
  if is_idle or grows then redis.call('PEXPIRE', state.meta, left) end
  if state.in_use > 0 and (grows or state.is_first_permit) then redis.call('PEXPIRE', state.permits, left) end
  if state.queued > 0 and (grows or state.is_first_entry) then redis.call('PEXPIRE', state.queue, left) end
end
