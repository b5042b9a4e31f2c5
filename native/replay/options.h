// What the command line asks for.
#ifndef MOETIER_OPTIONS_H
#define MOETIER_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/failure.h"

enum mode { MODE_PAGE_CACHE, MODE_FADV_RANDOM, MODE_MMAP, MODE_DIRECT };
enum stamps { STAMPS_FULL, STAMPS_ENDS, STAMPS_NONE };
enum hits { HITS_NONE, HITS_CACHESTAT, HITS_MINCORE, HITS_AUTO };
enum prefetch_kind { PREFETCH_NONE, PREFETCH_FADVISE, PREFETCH_BLOCKING };

struct names {
    const char **items;
    size_t count;
};

struct options {
    const char *plan;
    const char *root;
    enum mode mode;
    uint32_t threads;
    uint64_t destinations;
    enum stamps stamps;
    enum hits hits;
    uint64_t residency_samples;
    struct names passes;
    struct names hits_passes; // empty: all
    struct names captures;
    struct names device_stats;
    struct names inflights;
    enum prefetch_kind prefetch;
    const char *advice;      // the list file, NULL without prefetch
    uint64_t prefetch_chunk; // bytes of one hint; 0 without hints
    const char *spine; // a file below the root, or NULL
    bool spine_lock;
    double compute_seconds;   // 0: no compute phase
    uint32_t compute_threads; // 0 without
    bool wait;
    const char *self_test; // a file, or NULL
    bool help;
    bool version;
};

extern const char *const mode_names[];
extern const char *const prefetch_names[];

bool options_parse(struct options *options, int argc, char **argv, struct failure *failure);

bool names_hold(const struct names *names, const char *name);

void options_help(void);

void options_free(struct options *options);

#endif
