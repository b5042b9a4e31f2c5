#include "replay/events.h"

#include <unistd.h>

#include "common/clock.h"
#include "common/procfile.h"

static void put_plan(struct json *line, const struct plan_header *header)
{
    json_open_object(line, "plan");
    json_u64(line, "iterations", header->n_iterations);
    json_u64(line, "accesses", header->n_accesses);
    json_u64(line, "experts", header->n_experts);
    json_u64(line, "files", header->n_files);
    json_u64(line, "total_bytes", header->total_bytes);
    json_hex64(line, "pool_id", header->pool_id);
    json_bool(line, "stamped", header->flags & PLAN_STAMPED);
    json_bool(line, "synthetic_trace", header->flags & PLAN_SYNTHETIC_TRACE);
    json_bool(line, "synthetic_pool", header->flags & PLAN_SYNTHETIC_POOL);
    json_close_object(line);
}

void event_start(struct json *line, const struct options *options, const struct plan *plan, uint64_t destination_bytes,
                 const struct probe_choice *probe, uint64_t spine_bytes)
{
    json_event(line, "start");
    json_string(line, "version", MOETIER_VERSION);
    json_u64(line, "pid", (uint64_t)getpid());
    json_string(line, "mode", mode_names[options->mode]);
    json_string(line, "warm_mode", mode_names[options->warm_mode]);
    json_u64(line, "threads", options->threads);
    json_u64(line, "background_threads", options->background_threads);
    json_u64(line, "destinations", options->destinations);
    json_u64(line, "destination_bytes", destination_bytes);
    json_string(line, "copy", copy_name(options->mode));
    json_string(line, "residency_probe", probe_name(probe->probe));
    json_string(line, "probe_note", probe->note);
    json_string(line, "prefetch", prefetch_names[options->prefetch]);
    json_u64(line, "spine_bytes", spine_bytes);
    json_u64(line, "compute_threads", options->compute_threads);
    put_plan(line, &plan->header);
    json_send(line);
}

static void put_if(struct json *line, const char *key, bool known, uint64_t value)
{
    if (known)
        json_u64(line, key, value);
    else
        json_null(line, key);
}

static void put_devices(struct json *line, const char *key, const struct counters *counters)
{
    json_open_array(line, key);
    for (size_t i = 0; i < counters->n_devices; i++) {
        struct count device = counters_delta(counters, i);
        put_if(line, NULL, device.known, device.bytes);
    }
    json_close_array(line);
}

static void put_process(struct json *line, const char *key, const struct counters *counters)
{
    struct count process = counters_delta(counters, counters->n_devices);
    put_if(line, key, process.known, process.bytes);
}

void event_own(struct json *line, const struct options *options, const struct own *own, const struct counters *counters)
{
    bool arena = own->kind == OWN_ARENA;
    json_event(line, "own");
    json_string(line, "kind", arena ? "arena" : "user_cache");
    json_u64(line, "asked_bytes", options->own_bytes);
    json_u64(line, "held_bytes", arena ? own->arena.held_bytes : own->cache.n_slabs * own->cache.slab_bytes);
    json_u64(line, "mapped_bytes", own_mapped_bytes(own));
    if (arena) {
        json_u64(line, "experts", own->arena.n_experts);
    } else {
        json_u64(line, "slabs", own->cache.n_slabs);
        json_u64(line, "slab_bytes", own->cache.slab_bytes);
    }
    json_u64(line, "preload_bytes", own->preload_bytes);
    put_devices(line, "preload_device_bytes", counters);
    put_process(line, "preload_process_bytes", counters);
    json_seconds(line, "preload_seconds", own->preload_seconds);
    json_send(line);
}

void event_ready(struct json *line, uint64_t budgeted_bytes, uint64_t locked_bytes)
{
    json_event(line, "ready");
    json_u64(line, "rss_anon_bytes", self_status_bytes("RssAnon"));
    json_u64(line, "budgeted_bytes", budgeted_bytes);
    json_u64(line, "locked_bytes", locked_bytes);
    json_seconds(line, "clock_seconds", clock_seconds());
    json_send(line);
}

void event_residency(struct json *line, const struct pass *pass, const char *at, double when, uint64_t resident_bytes,
                     uint64_t pool_bytes, double cost_seconds)
{
    json_event(line, "residency");
    json_string(line, "pass", pass->name);
    json_string(line, "at", at);
    json_u64(line, "iteration", pass_next(pass));
    json_seconds(line, "clock_seconds", when);
    json_u64(line, "resident_bytes", resident_bytes);
    json_u64(line, "pool_bytes", pool_bytes);
    json_seconds(line, "cost_seconds", cost_seconds);
    json_send(line);
}

void event_experts(struct json *line, const struct pass *pass, const uint64_t *resident_bytes, uint64_t n_experts)
{
    json_event(line, "experts");
    json_string(line, "pass", pass->name);
    json_open_array(line, "resident_bytes");
    for (uint64_t i = 0; i < n_experts; i++)
        json_u64(line, NULL, resident_bytes[i]);
    json_close_array(line);
    json_send(line);
}

void event_folios(struct json *line, const struct pass *pass, const struct folios *folios)
{
    int orders = FOLIO_ORDERS;
    while (orders > 0 && folios->bytes_by_order[orders - 1] == 0)
        orders--;
    json_event(line, "folios");
    json_string(line, "pass", pass->name);
    json_open_array(line, "bytes_by_order");
    for (int order = 0; order < orders; order++)
        json_u64(line, NULL, folios->bytes_by_order[order]);
    json_close_array(line);
    json_u64(line, "unknown_bytes", folios->unknown_bytes);
    json_u64(line, "files", folios->files);
    json_u64(line, "files_looked_at", folios->files_looked_at);
    json_u64(line, "pool_bytes", folios->pool_bytes);
    json_u64(line, "looked_at_bytes", folios->looked_at_bytes);
    json_string(line, "note", folios->note);
    json_seconds(line, "cost_seconds", folios->cost_seconds);
    json_send(line);
}

static void put_seconds_if(struct json *line, const char *key, bool known, double seconds)
{
    if (known)
        json_seconds(line, key, seconds);
    else
        json_null(line, key);
}

static void put_prefetch(struct json *line, const struct prefetch *prefetch)
{
    if (!prefetch) {
        json_null(line, "prefetch");
        return;
    }
    const struct prefetch_counts *counts = &prefetch->counts;
    json_open_object(line, "prefetch");
    json_u64(line, "submitted", atomic_load(&prefetch->submitted));
    json_u64(line, "overwritten", atomic_load(&prefetch->overwritten));
    json_u64(line, "completed", counts->completed);
    json_u64(line, "pending", counts->pending);
    json_u64(line, "experts", counts->experts);
    json_u64(line, "asked_bytes", counts->asked_bytes);
    put_if(line, "resident_before_bytes", prefetch->probe != PROBE_NONE, counts->resident_before_bytes);
    put_if(line, "became_resident_bytes", prefetch->probe != PROBE_NONE, counts->became_resident_bytes);
    json_u64(line, "read_bytes", counts->read_bytes);
    json_close_object(line);
}

void event_iteration(struct json *line, const struct pass *pass, double wall_seconds, const struct tally *tally,
                     const struct usage *usage, const struct counters *counters)
{
    json_event(line, "iteration");
    json_string(line, "pass", pass->name);
    json_u64(line, "index", pass_next(pass));
    json_seconds(line, "wall_seconds", wall_seconds);
    json_u64(line, "bytes", tally->bytes);
    json_u64(line, "accesses", tally->accesses);
    put_if(line, "hit_bytes", pass->counts_hits, tally->hit_bytes);
    put_if(line, "held_bytes", pass->owns_memory, tally->held_bytes);
    put_devices(line, "device_read_bytes", counters);
    put_process(line, "process_read_bytes", counters);
    json_u64(line, "major_faults", usage->major_faults);
    json_u64(line, "minor_faults", usage->minor_faults);
    put_seconds_if(line, "compute_seconds", pass->computes, tally->compute_seconds);
    json_send_soon(line);
}

void event_pass(struct json *line, const struct pass *pass)
{
    json_event(line, "pass");
    json_string(line, "pass", pass->name);
    json_u64(line, "iterations", pass->iterations);
    json_seconds(line, "wall_seconds", pass->wall_seconds);
    json_seconds(line, "elapsed_seconds", pass->elapsed_seconds);
    json_seconds(line, "bookkeeping_seconds", pass->bookkeeping_seconds);
    json_u64(line, "bytes", pass->tally.bytes);
    json_u64(line, "accesses", pass->tally.accesses);
    json_u64(line, "stamps_checked", pass->tally.stamps);
    put_if(line, "hit_bytes", pass->counts_hits, pass->tally.hit_bytes);
    put_if(line, "hit_accesses", pass->counts_hits, pass->tally.hit_accesses);
    put_if(line, "held_bytes", pass->owns_memory, pass->tally.held_bytes);
    put_if(line, "held_accesses", pass->owns_memory, pass->tally.held_accesses);
    json_u64(line, "major_faults", pass->usage.major_faults);
    json_u64(line, "minor_faults", pass->usage.minor_faults);
    json_seconds(line, "user_seconds", pass->usage.user_seconds);
    json_seconds(line, "system_seconds", pass->usage.system_seconds);
    json_u64(line, "spine_bytes", pass->tally.spine_bytes);
    put_seconds_if(line, "compute_seconds", pass->computes, pass->tally.compute_seconds);
    put_prefetch(line, pass->prefetch);
    json_bool(line, "partial", pass->partial);
    json_send(line);
}

void event_end(struct json *line, bool partial, int exit)
{
    json_event(line, "end");
    json_bool(line, "partial", partial);
    json_i64(line, "exit", exit);
    json_send(line);
}
