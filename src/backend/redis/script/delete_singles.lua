-- Deletes the records of released names. When memory is full the writes pass after the deletion, which always does.

if deleted then
  call('DEL', unpack(deleted))
  redis.pcall('SET', KEYS[names + 1], pack(GUARD, FORMAT_VERSION, math.max(guard, latest_deleted)), 'PX', lease_text)
  local expires = math.max(token_expires, now + lease)
  redis.pcall('SET', KEYS[names + 2], pack(TOKEN, FORMAT_VERSION, math.max(token_floor, highest_deleted), expires), 'PX',
    string.format('%.0f', expires - now))
end
if is_fast and not has_states then return table.concat(answers) end
