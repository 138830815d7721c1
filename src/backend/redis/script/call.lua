-- The state of one call: its operations and keys. What is read and computed is added to it.

-- Reads the call about name `i`, packed at this position. Returns its state, and the position of the next call.
local function read_call(i, at)
  local data, count = ARGV[5], 1
  local kind, number, limit, text, tickets, _ = string.sub(data, at, at), nil, nil, nil, nil, nil
  local releases, renews, acquires, tries = 0, 0, 0, 0
  if kind == 'O' then
    number, limit, releases, renews, acquires, tries, at = struct.unpack('<ddHHHH', data, at + 1)
    count = releases + renews + acquires + tries
    tickets = {struct.unpack('<' .. string.rep('Hc0', count), data, at)}
    at = tickets[count + 1]
  else
    number, limit, _, text, at = struct.unpack('<dddHc0', data, at + 1)
    tickets = {text}
    if kind == 'R' then releases = 1 elseif kind == 'A' then acquires = 1 else tries = 1 end
  end
  local key = #KEYS - 3 * (ARGV[4] - i) -- of meta, after permits and queue
  return {number = number, limit = limit, releases = releases, renews = renews, acquires = acquires, tries = tries, tickets = tickets, key = key}, at
end
