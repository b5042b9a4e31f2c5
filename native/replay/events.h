// The replayer's events, as the reader of its lines knows them.
#ifndef MOETIER_EVENTS_H
#define MOETIER_EVENTS_H

#include "common/json.h"
#include "replay/counters.h"
#include "replay/folios.h"
#include "replay/options.h"
#include "replay/own.h"
#include "replay/pass.h"
#include "replay/plan.h"
#include "replay/probe.h"

void event_start(struct json *line, const struct options *options, const struct plan *plan, uint64_t destination_bytes,
                 const struct probe_choice *probe, uint64_t spine_bytes);
// What own memory holds at the start. The counters' last two readings enclose its preload.
void event_own(struct json *line, const struct options *options, const struct own *own, const struct counters *counters);
// budgeted_bytes: own memory, a part of the capacity; locked_bytes: what this process asked to lock.
void event_ready(struct json *line, uint64_t budgeted_bytes, uint64_t locked_bytes);
void event_residency(struct json *line, const struct pass *pass, const char *at, double when, uint64_t resident_bytes,
                     uint64_t pool_bytes, double cost_seconds);
void event_experts(struct json *line, const struct pass *pass, const uint64_t *resident_bytes, uint64_t n_experts);
void event_folios(struct json *line, const struct pass *pass, const struct folios *folios);
void event_iteration(struct json *line, const struct pass *pass, double wall_seconds, const struct tally *tally,
                     const struct usage *usage, const struct counters *counters);
void event_pass(struct json *line, const struct pass *pass);
void event_end(struct json *line, bool partial, int exit);

#endif
