-- Grants from the head of the queue.

local function grant_head(state, ticket, owner, deadline)
  state.is_first_permit = state.is_first_permit or state.in_use == 0
  state.in_use = state.in_use + redis.call('ZADD', state.permits, 'GT', deadline, ticket)
  state.token = math.max(state.token + 1, state.micros)
  redis.call('ZREM', state.queue, ticket)
  count_dequeued(state, owner)
  state.grants_left = state.grants_left - 1
  state.tokens[ticket] = state.token
  if owner == state.node then
    state.granted[#state.granted + 1] = ticket
  else
    local push = string.format(' %s %.0f', string.sub(ticket, #owner + 2), state.token)
    state.pushes[owner] = (state.pushes[owner] or '') .. push
  end
end

-- Returns what the head has become: granted, skipped (its node may yet call), dropped, or blocked.
local function judge_head(state, ticket)
  local owner, limit, deadline = node_of(ticket), nil, nil
  if owner == state.node and state.number > 0 then
    limit, deadline = state.limit, state.clock + state.lease
  else
    local entry = node_record(state, owner)
    if entry and entry.is_unknown then
      state.has_more = true
      return 'blocked'
    end
    if entry then limit, deadline = entry.limit, entry.deadline end
  end
  if not limit or deadline <= state.clock then
    if state.grace > 0 then return 'skipped' end
    redis.call('ZREM', state.queue, ticket)
    count_dequeued(state, owner)
    return 'dropped'
  end
  if state.in_use >= limit then return 'blocked' end
  grant_head(state, ticket, owner, deadline)
  return 'granted'
end

local function grant(state)
  local rank, chunk, heads = 0, 1, state.heads -- tickets before the rank are skipped
  state.heads = nil
  while state.queued > rank do
    if state.grants_left == 0 or state.heads_left == 0 then
      state.has_more = true
      return
    end
    heads = heads or redis.call('ZRANGE', state.queue, rank, rank + math.min(chunk, state.grants_left, state.heads_left) - 1)
    if #heads == 0 then return end
    for _, ticket in ipairs(heads) do
      state.heads_left = state.heads_left - 1
      local outcome = judge_head(state, ticket)
      if outcome == 'blocked' then return end
      if outcome == 'skipped' then rank = rank + 1 end
    end
    heads, chunk = nil, math.min(chunk * 4, 64)
  end
end
