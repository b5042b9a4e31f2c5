// The balloon's events; two threads emit them, each whole line at once.
#ifndef MOETIER_BALLOON_EVENTS_H
#define MOETIER_BALLOON_EVENTS_H

#include <stdint.h>

void event_locked(uint64_t bytes, int64_t oom_score_adj);
void event_status(uint64_t bytes, uint64_t late_heartbeats);

// The balloon let go by itself.
void event_released(const char *why, uint64_t mem_available_bytes);

#endif
