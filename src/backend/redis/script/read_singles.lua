-- Reads the single-holder records, and what stays for one lease when a batch deletes some: guard and token. A call with a number below the
-- guard is stale, unless a record of this node exists: then its number decides. A new token must exceed the stored one.
--
-- All of it is read by one MGET. Then one EXISTS for every few names without a record shows which have no keys.

local NAMES_PER_EXISTS = 16
local guard, token_floor, token_expires = 0, 0, 0
local is_known = true -- the formats of guard and token
local singles = has_single and call('MGET', unpack(KEYS, 1, names + 2)) or {}
local is_fresh, latest, highest = {}, singles[names + 1], singles[names + 2]
local has_fast = false -- a name has a record or no keys, so that the fast path may apply
local only_meta -- of the only name, if it has no record

if latest then
  is_known = #latest == GUARD_BYTES and byte(latest) == FORMAT_VERSION
  if is_known then guard = unpack_record('<d', latest, 2) end
end
if highest and is_known then
  is_known = #highest == TOKEN_BYTES and byte(highest) == FORMAT_VERSION
  if is_known then token_floor, token_expires = unpack_record('<dd', highest, 2) end
end

if has_single and names == 1 then
  if not singles[1] then
    only_meta = call('HMGET', KEYS[6], STATE_FIELD, node)
    if not only_meta[1] then is_fresh[1] = call('EXISTS', KEYS[4], KEYS[5], KEYS[6]) == 0 end
  end
  has_fast = singles[1] or is_fresh[1]
elseif has_single then
  local keys, chunk, size = {}, {}, 0
  for i = 1, names do
    if singles[i] then
      has_fast = true
    else
      local key = general_keys + 3 * i
      size = size + 1
      chunk[size] = i
      keys[3 * size - 2], keys[3 * size - 1], keys[3 * size] = KEYS[key - 2], KEYS[key - 1], KEYS[key]
    end
    if size == NAMES_PER_EXISTS or (size > 0 and i == names) then
      local absent = call('EXISTS', unpack(keys, 1, 3 * size)) == 0
      for j = 1, size do is_fresh[chunk[j]] = absent end
      has_fast, size = has_fast or absent, 0
    end
  end
end
