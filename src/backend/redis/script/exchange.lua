-- Executes the remaining calls: each fits the single-holder form, is converted from it, or needs the general form.

-- Executes a call whose name the uncontended path has not read. Raises the error for a record that has an unknown format.
local exchange_unread = has_unread and function(state, single, name)
  if latest then read_record(latest, GUARD, GUARD_BYTES, KEYS[names + 1]) end
  if highest then read_record(highest, TOKEN, TOKEN_BYTES, KEYS[names + 2]) end
  local answer
  state.name = name
  if single or not state.is_unknown then answer = exchange_single(state, single) end
  if answer then return answer end
  if single then convert(state, single) end
  answer, state = exchange_uncontended(state)
  if answer then return answer end
  if state.clock then return exchange_general(state) end

  local meta = KEYS[state.key]
  local read = call('HMGET', meta, STATE_FIELD, node)
  if read[1] then read_record(read[1], STATE, STATE_BYTES, meta, STATE_FIELD) end
  if read[2] then read_record(read[2], NODE, NODE_BYTES, meta, node) end
end

for i = 1, names do
  local state = states[i]
  if state then
    local execute = state.clock and exchange_general or exchange_unread
    answers[i] = attempt(execute, state, singles[i], i)
    if names == 1 then return answers[1] end
  end
end
return join_answers(answers)
