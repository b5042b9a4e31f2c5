#include "replay/pass.h"

#include <inttypes.h>
#include <stdlib.h>

#include "common/clock.h"
#include "replay/events.h"
#include "replay/folios.h"
#include "replay/probe.h"
#include "replay/stop.h"

static bool sample_residency(const struct pass *pass, struct pass_context *context, const char *at, struct failure *failure)
{
    if (context->probe == PROBE_NONE || stopping())
        return true;
    uint64_t bytes;
    double start = clock_seconds();
    if (!pool_resident_bytes(context->probe, context->pool, &bytes, failure))
        return false;
    event_residency(&context->line, pass, at, start, bytes, plan_experts_bytes(context->plan), clock_seconds() - start);
    return true;
}

static bool report_experts(const struct pass *pass, struct pass_context *context, struct failure *failure)
{
    if (!pass->reports_experts || stopping())
        return true;
    uint64_t n_experts = context->plan->header.n_experts;
    uint64_t *bytes = malloc(n_experts * sizeof *bytes);
    if (!bytes)
        return failure_set(failure, EXIT_FAILED, "memory", "no memory for the residency of %" PRIu64 " experts", n_experts);
    bool good = experts_resident_bytes(context->probe, context->pool, bytes, failure);
    if (good)
        event_experts(&context->line, pass, bytes, n_experts);
    free(bytes);
    return good;
}

static void report_folios(const struct pass *pass, struct pass_context *context)
{
    if (!pass->reports_folios || stopping())
        return;
    struct folios folios;
    folios_look(&folios, context->pool, context->probe);
    event_folios(&context->line, pass, &folios);
}

// Whether the border before the next iteration is one of the N that cut the pass into N + 1 even parts.
static bool is_residency_border(const struct pass *pass, const struct options *options)
{
    if (pass->iterations == 0 || options->residency_samples == 0)
        return false;
    uint64_t parts = options->residency_samples + 1;
    unsigned __int128 before = (unsigned __int128)(pass->iterations - 1) * parts / pass->planned;
    return (unsigned __int128)pass->iterations * parts / pass->planned > before;
}

// Between two iterations, before the first and after the last.
static void sample_files(const struct pass *pass, struct pass_context *context)
{
    bool ends = pass->iterations == pass->planned;
    if (pass->samples && (ends || pass->iterations % context->options->sample_every == 0))
        capture_sample(context->capture, &context->options->samples, pass->name, pass_next(pass));
}

// The phase that follows an iteration's accesses; false when a stop cut it short.
static bool run_compute(struct compute *compute, struct tally *tally)
{
    double start = clock_seconds();
    bool whole = compute_run(compute);
    tally->compute_seconds = clock_seconds() - start;
    return whole;
}

// Only whole iterations count: the sum over the iteration events is the pass.
static bool run_iteration(struct pass *pass, struct pass_context *context, double *border)
{
    uint64_t first = context->plan->iterations[pass_next(pass)];
    uint64_t limit = context->plan->iterations[pass_next(pass) + 1];
    struct usage usage = {0};
    struct usage before = usage_now();
    double start = clock_seconds();
    pass->bookkeeping_seconds += start - *border;
    struct tally tally = crew_run(context->crew, first, limit);
    bool whole = tally.accesses == limit - first && (!context->crew->spine || tally.spine_bytes == context->crew->spine->bytes);
    if (whole && context->compute)
        whole = run_compute(context->compute, &tally);
    *border = clock_seconds();
    struct usage after = usage_now();
    if (!whole)
        return false;
    counters_read(context->counters);
    tally_add(&pass->tally, &tally);
    usage_add(&usage, &before, &after);
    usage_add(&pass->usage, &before, &after);
    pass->wall_seconds += *border - start;
    event_iteration(&context->line, pass, *border - start, &tally, &usage, context->counters);
    pass->iterations++;
    return true;
}

static bool run_iterations(struct pass *pass, struct pass_context *context, struct failure *failure)
{
    counters_read(context->counters);
    double border = clock_seconds();
    while (pass->iterations < pass->planned && !stopping()) {
        sample_files(pass, context);
        if (is_residency_border(pass, context->options)) {
            double start = clock_seconds();
            pass->bookkeeping_seconds += start - border;
            if (!sample_residency(pass, context, "sample", failure))
                return false;
            border = clock_seconds();
        }
        if (!run_iteration(pass, context, &border))
            break;
    }
    if (pass->iterations == pass->planned)
        sample_files(pass, context);
    pass->bookkeeping_seconds += clock_seconds() - border;
    const struct failure *failed = crew_failure(context->crew);
    if (failed)
        *failure = *failed;
    return !failed;
}

// Nothing of the worker may be in flight at the exit's capture. A demand thread's failure, if any, is the one reported.
static bool halt_prefetch(struct prefetch *prefetch, struct failure *failure, bool good)
{
    if (!prefetch)
        return good;
    prefetch_halt(prefetch);
    const struct failure *failed = prefetch_failure(prefetch);
    if (good && failed)
        *failure = *failed;
    return good && !failed;
}

bool pass_run(struct pass *pass, struct pass_context *context, struct failure *failure)
{
    pass->computes = context->compute;
    pass->prefetch = context->crew->prefetch;
    context->crew->hits = pass->counts_hits ? context->probe : PROBE_NONE;
    if (!sample_residency(pass, context, "entry", failure))
        return false;
    capture_take(context->capture, pass->name, "entry");
    struct prefetch *prefetch = context->crew->prefetch;
    if (prefetch)
        prefetch_begin_pass(prefetch);
    double start = clock_seconds();
    bool good = run_iterations(pass, context, failure);
    pass->elapsed_seconds = clock_seconds() - start;
    good = halt_prefetch(prefetch, failure, good);
    capture_take(context->capture, pass->name, "exit");
    good = good && sample_residency(pass, context, "exit", failure) && report_experts(pass, context, failure);
    if (good)
        report_folios(pass, context);
    pass->partial = !good || pass->iterations < pass->planned;
    event_pass(&context->line, pass);
    return good;
}
