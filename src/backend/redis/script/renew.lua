-- Renews permits, never queue entries.

state.renewed = ''
if state.renews > 0 then
  local deadline = string.format('%.0f', state.clock + state.lease) -- once, and not for each ticket
  local tickets, entries, letters = {}, {}, {}
  for i = 1, state.renews do tickets[i] = state.owner .. state.tickets[state.releases + i] end
  local deadlines = call('ZMSCORE', state.permits, unpack(tickets))
  for i = 1, state.renews do
    letters[i] = deadlines[i] and 'h' or 'g'
    if deadlines[i] then entries[#entries + 1], entries[#entries + 2] = deadline, tickets[i] end
  end
  if #entries > 0 then call('ZADD', state.permits, 'XX', 'GT', unpack(entries)) end
  state.renewed = table.concat(letters)
end
