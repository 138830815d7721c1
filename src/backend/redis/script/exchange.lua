-- Executes the remaining calls in the general form. An error half-way leaves a valid state: a permit is added before its queue entry is
-- removed, and the state is written last. The first write is one that passes when memory is full (ZREM, PEXPIRE); after it, so does the rest.

local function exchange_general(state)
  if state.busy == 2 then
    local gaps, _ = redis.call('HMGET', state.meta, GAPS_FIELD)[1], nil
    if gaps then _, state.grace, state.due, state.gap, state.span = read_record(gaps, GAPS, GAPS_BYTES, state.meta, GAPS_FIELD) end
  end
  if state.queued == 0 then state.own_queued = 0 end
  read_nodes(state)
  state.tokens, state.granted, state.pushes = {}, {}, {} -- of all grants; own tickets; what to push to each node
  release(state)
  renew(state)
  expire(state)
  sweep(state)
  if state.queued > 0 then grant(state) end
  admit(state)
  commit(state)
  return reply(state)
end

-- Raises the error for a state or own record that the uncontended path did not read.
local function refuse_meta(state)
  local meta = KEYS[state.key]
  local read = redis.call('HMGET', meta, STATE_FIELD, node)
  if read[1] then read_record(read[1], STATE, STATE_BYTES, meta, STATE_FIELD) end
  if read[2] then read_record(read[2], NODE, NODE_BYTES, meta, node) end
end

local function exchange(state, single, name)
  if latest then read_record(latest, GUARD, GUARD_BYTES, GUARD_KEY) end
  if highest then read_record(highest, TOKEN, TOKEN_BYTES, TOKEN_KEY) end
  if not state.clock then
    local answer
    state.name = name
    if single or not state.is_unknown then answer = exchange_single(state, single) end
    if answer then return answer end
    if single then convert(state, single) end
    answer, state = exchange_uncontended(state)
    if answer then return answer end
    if not state.clock then refuse_meta(state) end
  end
  return exchange_general(state)
end

if names == 1 then return (attempt(exchange, states[1], singles[1], 1)) end
for i = 1, names do
  if states[i] then answers[i] = attempt(exchange, states[i], singles[i], i) end
end
return join_answers()
