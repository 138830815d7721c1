-- Grants from the head of the queue. Then acquires and tries tickets: a held one is renewed, a queued one stays, a new one is granted, queued
-- behind all others, or refused.

if state.queued > 0 then grant(state) end

local wanted = state.acquires + state.tries
state.acquired = ''
if wanted > 0 then
  local tickets, letters, permits, entries, kept, deadline = {}, {}, {}, {}, 0, nil
  for i = 1, wanted do tickets[i] = state.owner .. state.tickets[state.releases + state.renews + i] end
  local held = call('ZMSCORE', state.permits, unpack(tickets))
  local queued = state.queued > 0 and call('ZMSCORE', state.queue, unpack(tickets)) or {}
  local is_first = state.queued == 0
  for i, ticket in ipairs(tickets) do
    if held[i] or (state.queued == 0 and state.in_use < state.limit) then
      letters[i] = 'h'
      deadline = deadline or string.format('%.0f', state.clock + state.lease)
      permits[#permits + 1], permits[#permits + 2] = deadline, ticket
      if not held[i] then
        state.is_first_permit = state.is_first_permit or state.in_use == 0
        state.in_use, state.token = state.in_use + 1, math.max(state.token + 1, state.micros)
      end
    elseif queued[i] then
      letters[i], kept = 'w', kept + 1
    elseif i > state.acquires then
      letters[i] = 'r'
    else
      letters[i] = 'w'
      entries[#entries + 1], entries[#entries + 2] = 0, ticket
      state.queued, state.own_queued = state.queued + 1, state.own_queued + 1
    end
  end
  state.own_queued = math.max(state.own_queued, kept + #entries / 2)
  if #permits > 0 then call('ZADD', state.permits, 'GT', unpack(permits)) end
  if #entries > 0 then
    state.is_first_entry = is_first
    local arrival = is_first and 0 or tonumber(call('ZRANGE', state.queue, -1, -1, 'WITHSCORES')[2] or 0)
    for i = 1, #entries, 2 do entries[i] = arrival + (i + 1) / 2 end
    call('ZADD', state.queue, 'NX', unpack(entries))
    -- Those before the new tickets may all be skipped for now.
    if state.grace > 0 and state.in_use < state.limit then
      local before, is_new = #state.granted, {}
      grant(state)
      for i, ticket in ipairs(tickets) do
        is_new[ticket] = letters[i] == 'w' and not queued[i]
        if letters[i] == 'w' and state.tokens[ticket] then letters[i] = 'h' end
      end
      -- New tickets are answered by their letter.
      for i = #state.granted, before + 1, -1 do
        if is_new[state.granted[i]] then table.remove(state.granted, i) end
      end
    end
  end
  state.acquired = table.concat(letters)
end
