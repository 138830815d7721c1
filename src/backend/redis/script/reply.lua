-- Packs the answer of the general form.

local poll_after, clock, grace = -1, state.clock, state.grace
if state.has_more then
  poll_after = 1
elseif state.own_queued > 0 and state.number > 0 then
  poll_after = 0.45 * state.shortest
  if grace > 0 then poll_after = math.min(poll_after, grace - clock + 1) end
  local first = tonumber(call('ZRANGE', state.permits, 0, 0, 'WITHSCORES')[2])
  if first and (first > clock or grace == 0) then poll_after = math.min(poll_after, first - clock + 1) end
  if state.mute == 1 then poll_after = math.min(poll_after, 100) end
  poll_after = math.max(1, math.floor(poll_after))
end

local grants = ''
for _, ticket in ipairs(state.granted) do
  grants = grants .. struct.pack('<dd', tonumber(string.sub(ticket, #state.node + 2)), state.tokens[ticket])
end
local letters = state.released .. state.renewed .. state.acquired
return struct.pack(GENERAL_ANSWER, 'g', state.in_use, state.queued, poll_after, state.token, state.mute, #state.granted, letters) .. grants
