-- Reads a single-holder record. Its length depends on that of the node.

local function read_single(record, key)
  local low, high = string.byte(record, SINGLE_BYTES - 1, SINGLE_BYTES)
  return read_record(record, SINGLE, SINGLE_BYTES + (low or 0) + 256 * (high or 0), key)
end
