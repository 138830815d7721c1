-- The server's time. Nothing else is a clock here: the lease clock follows it.

local time = redis.call('TIME')
local micros = time[1] * 1000000 + time[2]
local now = math.floor(micros / 1000)

-- The lease clock is stored with the TIME when it was read. Since then it has advanced by max(0, now - that TIME): it never goes back.
