-- Converts a name from the single-holder form to the general form. Reads come first: a record or key that is not ours causes an error before
-- anything was changed.

local convert = has_unread and function(state, record)
  local permits, queue, meta, single_key = KEYS[state.key - 2], KEYS[state.key - 1], KEYS[state.key], KEYS[state.name]
  local _, latest, limit, its_lease, clock, read_at, token, holder, deadline, owner = read_single(record, single_key)
  local known = call('HMGET', meta, STATE_FIELD)[1]
  if known then read_record(known, STATE, STATE_BYTES, meta, STATE_FIELD) end
  call('ZCARD', queue)

  local expires = HOUR + 2 * its_lease
  call('ZREM', permits, '')
  if holder ~= FREE then
    call('ZADD', permits, 'GT', deadline, string.format('%s-%.0f', owner, holder))
    call('PEXPIRE', permits, expires)
  end
  call('HSET', meta, STATE_FIELD,
    pack(STATE, FORMAT_VERSION, clock, read_at, token, its_lease, its_lease, now + expires, clock + its_lease, 0, 0),
    owner, pack(NODE, FORMAT_VERSION, latest, limit, its_lease, clock, 0))
  call('PEXPIRE', meta, expires)
  call('DEL', single_key)
end
