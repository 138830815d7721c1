-- Converts a name from the single-holder form to the general form. Reads come first: a record or key that is not ours causes an error before
-- anything was changed.

local convert = has_singles and function(state, record)
  local PERMITS, QUEUE, META, SINGLE_KEY = KEYS[state.key - 2], KEYS[state.key - 1], KEYS[state.key], KEYS[state.name]
  local _, latest, limit, its_lease, clock, read_at, token, holder, deadline, owner = read_single(record, SINGLE_KEY)
  local known = call('HMGET', META, STATE_FIELD)[1]
  if known then read_record(known, STATE, STATE_BYTES, META, STATE_FIELD) end
  call('ZCARD', QUEUE)

  local expires = 3600000 + 2 * its_lease
  call('ZREM', PERMITS, '')
  if holder ~= FREE then
    call('ZADD', PERMITS, 'GT', deadline, string.format('%s-%.0f', owner, holder))
    call('PEXPIRE', PERMITS, expires)
  end
  call('HSET', META, STATE_FIELD,
    pack(STATE, FORMAT_VERSION, clock, read_at, token, its_lease, its_lease, now + expires, clock + its_lease, 0, 0),
    owner, pack(NODE, FORMAT_VERSION, latest, limit, its_lease, clock, 0))
  call('PEXPIRE', META, expires)
  call('DEL', SINGLE_KEY)
end
