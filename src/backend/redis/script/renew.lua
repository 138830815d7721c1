-- Renews permits, never queue entries.

state.deadline = string.format('%.0f', state.clock + state.lease) -- once, and not for each ticket
state.renewed = ''
if state.renews > 0 then
  local tickets, entries, letters = {}, {}, {}
  for i = 1, state.renews do tickets[i] = state.owner .. state.tickets[state.releases + i] end
  local deadlines = redis.call('ZMSCORE', state.permits, unpack(tickets))
  for i = 1, state.renews do
    letters[i] = deadlines[i] and 'h' or 'g'
    if deadlines[i] then entries[#entries + 1], entries[#entries + 2] = state.deadline, tickets[i] end
  end
  if #entries > 0 then redis.call('ZADD', state.permits, 'XX', 'GT', unpack(entries)) end
  state.renewed = table.concat(letters)
end
