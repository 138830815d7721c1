-- Rolls back what one attempt has written, and releases tickets. No older call of the node changes anything afterwards.
--
-- KEYS  lock, fence of this node
-- ARGV  node, number, attempt to roll back (or 0), attempt to fence off, lease in ms, tickets to release
-- reply 1

local FIRST_TICKET = 6

local function release()
  local number, fenced = tonumber(ARGV[2]), tonumber(ARGV[4])
  local fence, lock = read_fence(KEYS[2]), read_lock(KEYS[1])
  if lock and lock.node == ARGV[1] then
    local matches = lock.attempt == ARGV[3]
    for i = FIRST_TICKET, #ARGV do matches = matches or ARGV[i] == lock.ticket end
    if matches then call('DEL', KEYS[1]) end
  end
  local is_fenced = fence and number == fence.number and fenced == fence.attempt
  if is_fenced or is_late(fence, number, fenced) then return 1 end
  write_fence(KEYS[2], ARGV[2], ARGV[4], tonumber(ARGV[5]), fence)
  return 1
end

return attempt(release)
