// What the command line asks for.
#ifndef MOETIER_OPTIONS_H
#define MOETIER_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/arguments.h"
#include "common/failure.h"
#include "replay/modes.h"
#include "replay/stamps.h"

enum hits { HITS_NONE, HITS_CACHESTAT, HITS_MINCORE, HITS_AUTO };
enum prefetch_kind { PREFETCH_NONE, PREFETCH_FADVISE, PREFETCH_BLOCKING };

struct options {
    const char *plan;
    const char *root;
    enum mode mode;      // of the last pass
    enum mode warm_mode; // of all passes before it
    bool has_warm_mode;  // it was asked for
    uint64_t chunk_bytes; // of one pread; 0: the whole extent
    uint64_t warm_chunk_bytes; // likewise in the passes before the last
    bool has_warm_chunk;       // it was asked for
    uint32_t background_threads; // 0 where neither mode reads ahead
    uint32_t threads;
    uint64_t destinations;
    enum stamps stamps;
    enum hits hits;
    uint64_t residency_samples;
    struct names passes;
    struct names hits_passes; // empty: all
    struct names experts_exit; // passes whose exit reports every expert's residency
    uint64_t warm_iterations; // the plan's last, of every pass but the last; 0: all
    struct names samples; // files read at iteration borders
    uint64_t sample_every; // iterations
    struct names sample_passes;
    struct names folios_exit; // passes whose exit reports the pool's folios
    struct names captures;
    struct names device_stats;
    struct names inflights;
    enum prefetch_kind prefetch;
    const char *advice;      // the list file, NULL without prefetch
    uint64_t prefetch_chunk; // bytes of one hint; 0 without hints
    uint64_t own_bytes; // of the mode's own memory; 0 without
    const char *table;  // the list file of what to pin, NULL without
    const char *spine; // a file below the root, or NULL
    bool spine_lock;
    double compute_seconds;   // 0: no compute phase
    uint32_t compute_threads; // 0 without
    bool wait;
    const char *self_test; // a file, or NULL
    bool help;
    bool version;
};

extern const char *const prefetch_names[];

// Whether the passes before the last read in another way.
static inline bool options_turn(const struct options *options)
{
    return options->warm_mode != options->mode || options->warm_chunk_bytes != options->chunk_bytes;
}

// Whether one of the passes reads so.
static inline bool options_use(const struct options *options, enum mode mode)
{
    return options->mode == mode || options->warm_mode == mode;
}

bool options_parse(struct options *options, int argc, char **argv, struct failure *failure);

void options_help(void);

void options_free(struct options *options);

#endif
