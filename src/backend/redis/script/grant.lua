-- Grants from the head of the queue.

local function grant_head(state, ticket, owner, deadline)
  local token = math.max(state.token + 1, state.micros)
  state.is_first_permit = state.is_first_permit or state.in_use == 0
  state.in_use = state.in_use + redis.call('ZADD', state.permits, 'GT', deadline, ticket)
  redis.call('ZREM', state.queue, ticket)
  count_dequeued(state, owner)
  state.grants_left = state.grants_left - 1
  state.token, state.tokens[ticket] = token, token
  if owner == state.node then
    state.granted[#state.granted + 1] = ticket
  else
    local pushes = state.pushes
    pushes[owner] = (pushes[owner] or '') .. string.format(' %s %.0f', string.sub(ticket, #owner + 2), token)
  end
end

local function grant(state)
  local rank, chunk, heads, clock = 0, 1, state.heads, state.clock -- tickets before the rank are skipped: their nodes may still call
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
      local owner, limit, deadline = node_of(ticket), nil, 0
      if owner == state.node and state.number > 0 then
        limit, deadline = state.limit, clock + state.lease
      else
        local entry = node_record(state, owner)
        if entry and entry.is_unknown then
          state.has_more = true
          return
        end
        if entry then limit, deadline = entry.limit, entry.deadline end
      end
      if deadline > clock then
        if state.in_use >= limit then return end
        grant_head(state, ticket, owner, deadline)
      elseif state.grace > 0 then
        rank = rank + 1
      else
        redis.call('ZREM', state.queue, ticket)
        count_dequeued(state, owner)
      end
    end
    heads, chunk = nil, math.min(chunk * 4, 64)
  end
end
