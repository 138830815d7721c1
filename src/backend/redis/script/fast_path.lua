-- The two most frequent calls, as exchange_single executes them: the only ticket of a name is acquired, or released, and neither lease clock
-- nor token needs special treatment. In a batch a fresh name costs one SET, and all releases together cost a DEL.
--
-- Packing a record field by field costs as much as writing it. So these calls join theirs from parts: some of the call, some common to all.

local ONE_TICKET_PARTS = '<c16c8H' -- number and limit, number of the ticket, length of its text
local answers, states, at, has_states = {}, {}, 1, false -- states of the remaining calls
local own_end -- how a single-holder record of this node ends
local deleted, latest_deleted, highest_deleted = nil, 0, 0
local is_fast = is_known and has_fast

if is_fast then
  own_end = pack('<H', #node) .. node
  local fresh_token, free = pack('<d', math.max(token_floor + 1, micros)), pack('<d', FREE)
  local head, middle, tail = string.char(FORMAT_VERSION), pack('<ddd', lease, now, now), pack('<d', now + lease) .. own_end
  local success = 'o' .. fresh_token .. 'h'
  for i = 1, names do
    local kind, single, expires = sub(data, at, at), singles[i], lifetime_text
    local answer, record, length, done
    if kind ~= 'O' and (single or is_fresh[i]) then
      local numbers, ticket
      numbers, ticket, length = unpack_record(ONE_TICKET_PARTS, data, at + 1)
      if not single then
        if kind ~= 'R' and unpack_record('<d', numbers) >= guard then
          record, answer = head .. numbers .. middle .. fresh_token .. ticket .. tail, success
          done = redis.pcall('SET', KEYS[i], record, 'PX', expires, 'NX')
        end
      elseif #single > SINGLE_BYTES then
        local version, last_number, _, its_lease, clock, read_at, token, holder = unpack_record('<Bdddddc8c8', single)
        local number = unpack_record('<d', numbers)
        if version == FORMAT_VERSION and its_lease == lease and clock == read_at and read_at <= now and number >= last_number
          and sub(single, SINGLE_BYTES - 1) == own_end then
          if kind == 'R' and holder == ticket then
            answer = 'f1'
            if names > 1 then
              deleted = deleted or {}
              deleted[#deleted + 1], done = KEYS[i], deleted
              latest_deleted, highest_deleted = math.max(latest_deleted, number), math.max(highest_deleted, unpack_record('<d', token))
            else
              record, expires = head .. numbers .. middle .. token .. free .. tail, lease_text
              done = redis.pcall('SET', KEYS[i], record, 'PX', expires)
            end
          elseif kind ~= 'R' and holder == free and unpack_record('<d', token) < micros then
            record, answer = head .. numbers .. middle .. fresh_token .. ticket .. tail, success
            done = redis.pcall('SET', KEYS[i], record, 'PX', expires)
          end
        end
      end
    end
    if not done or done.err then answer = nil end
    if not answer then
      has_states, states[i], at = true, read_call(i, at)
    elseif names == 1 then
      return answer
    else
      at = at + 27 + length
    end
    answers[i] = answer or ''
  end
end
