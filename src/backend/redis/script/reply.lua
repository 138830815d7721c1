-- Packs the answer of the general form.

local function poll_after(state)
  if state.has_more then return 1 end
  if state.own_queued == 0 or state.number == 0 then return -1 end
  local after, clock, grace = 0.45 * state.shortest, state.clock, state.grace
  if grace > 0 then after = math.min(after, grace - clock + 1) end
  local first = tonumber(redis.call('ZRANGE', state.permits, 0, 0, 'WITHSCORES')[2])
  if first and (first > clock or grace == 0) then after = math.min(after, first - clock + 1) end
  if state.mute == 1 then after = math.min(after, 100) end
  return math.max(1, math.floor(after))
end

local function reply(state)
  local grants = ''
  for _, ticket in ipairs(state.granted) do
    grants = grants .. struct.pack('<dd', tonumber(string.sub(ticket, #state.node + 2)), state.tokens[ticket])
  end
  local letters = state.released .. state.renewed .. state.acquired
  return struct.pack(GENERAL_ANSWER, 'g', state.in_use, state.queued, poll_after(state), state.token, state.mute, #state.granted, letters) .. grants
end
