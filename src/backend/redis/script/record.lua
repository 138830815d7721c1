-- Reads records, and refuses those that another version of this crate has written.

-- `key`, `field`: where the record is stored.
local function read_record(record, format, bytes, key, field)
  local version = string.byte(record)
  if version == FORMAT_VERSION and #record == bytes then return struct.unpack(format, record) end
  local text = string.format('INCOMPATIBLE %s%s has format version %s and %d bytes, but this client reads format version %d and %d bytes',
    key, field and ' field ' .. field or '', version or 'none', #record, FORMAT_VERSION, bytes)
  error({err = string.sub(string.gsub(text, '%c', '?'), 1, 1000)})
end

local function node_of(ticket) return string.match(ticket, '^(.*)%-%d+$') or ticket end
