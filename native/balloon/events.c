#include "balloon/events.h"

#include "common/clock.h"
#include "common/json.h"
#include "common/memory.h"
#include "common/procfile.h"

void event_locked(uint64_t bytes, int64_t oom_score_adj)
{
    struct json line = {0};
    json_event(&line, "locked");
    json_u64(&line, "bytes", bytes);
    json_u64(&line, "vmlck_bytes", self_status_bytes("VmLck"));
    json_i64(&line, "oom_score_adj", oom_score_adj);
    json_seconds(&line, "clock_seconds", clock_seconds());
    json_send(&line);
    json_free(&line);
}

void event_status(uint64_t bytes, uint64_t late_heartbeats)
{
    struct json line = {0};
    json_event(&line, "status");
    json_u64(&line, "bytes", bytes);
    json_u64(&line, "vmlck_bytes", self_status_bytes("VmLck"));
    json_u64(&line, "mem_available_bytes", mem_available_bytes());
    json_u64(&line, "late_heartbeats", late_heartbeats);
    json_send(&line);
    json_free(&line);
}

void event_released(const char *why, uint64_t available)
{
    struct json line = {0};
    json_event(&line, "released");
    json_string(&line, "why", why);
    json_u64(&line, "mem_available_bytes", available);
    json_send(&line);
    json_free(&line);
}
