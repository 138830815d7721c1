-- Releases permits and queue entries, unless the uncontended path has already.

if state.releases == 0 then call('ZREM', state.permits, '') end
if not state.released then
  local letters = ''
  for i = 1, state.releases do
    -- A ticket may both be held and queued after an error half-way.
    local ticket, letter = state.owner .. state.tickets[i], '0'
    if call('ZREM', state.permits, ticket) == 1 then
      state.in_use, letter = state.in_use - 1, '1'
    end
    if state.queued > 0 and call('ZREM', state.queue, ticket) == 1 then
      count_dequeued(state, state.number > 0 and state.node or node_of(ticket))
      state.heads = nil
      if letter == '0' then letter = '2' end
    end
    letters = letters .. letter
  end
  state.released = letters
end
