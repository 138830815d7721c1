-- Executes the remaining calls as far as the uncontended path can: those about names in the general form.

if not is_fast then
  for i = 1, names do answers[i], states[i], at = '', read_call(i, at) end
end

has_states = not is_known
local has_unread = not is_known -- a remaining call needs a name that was not read
for i = 1, is_known and names or 0 do
  local state, single, answer = states[i], singles[i], nil
  if state then
    if state.number > 0 and state.number < guard and not (single and sub(single, SINGLE_BYTES - 1) == own_end) then
      answer = 's'
    elseif not single and not (is_fresh[i] and state.number > 0 and state.renews == 0) then
      answer, state = attempt(exchange_uncontended, state, only_meta)
    end
    if answer and names == 1 then return answer end
    if answer then answers[i], states[i] = answer, nil else has_states, states[i] = true, state end
    has_unread = has_unread or state and not state.clock
  end
end

local function join_answers(answers)
  for i, answer in ipairs(answers) do
    if type(answer) == 'table' then answers[i] = 'e' .. struct.pack('<Hc0', #answer.err, answer.err) end
  end
  return table.concat(answers)
end

if not has_states then return join_answers(answers) end
