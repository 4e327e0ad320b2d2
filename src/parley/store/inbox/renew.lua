-- Keys: lanes. Arguments: their holder, the lease in milliseconds.
for _, lane in ipairs(KEYS) do
    if redis.call('GET', lane) == ARGV[1] then
        redis.call('PEXPIRE', lane, ARGV[2])
    end
end
return 0
