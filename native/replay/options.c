#include "replay/options.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/number.h"
#include "replay/plan.h"

const char *const prefetch_names[] = {"none", "fadvise", "blocking", NULL};
static const char *const stamps_names[] = {"full", "ends", "none", NULL};
static const char *const hits_names[] = {"none", "cachestat", "mincore", "auto", NULL};

enum { MOST_THREADS = 1024, LEAST_DESTINATIONS = 64, LEAST_CHUNK = 4096, STANDARD_CHUNK = 131072,
       MOST_COMPUTE_SECONDS = 3600 };

enum option_key {
    OPTION_ROOT = 1, OPTION_MODE, OPTION_THREADS, OPTION_PASSES, OPTION_DESTINATIONS, OPTION_STAMPS, OPTION_HITS,
    OPTION_HITS_PASSES, OPTION_RESIDENCY_SAMPLES, OPTION_CAPTURE, OPTION_DEVICE_STAT, OPTION_INFLIGHT, OPTION_WAIT,
    OPTION_SELF_TEST, OPTION_HELP, OPTION_VERSION, OPTION_WARM_MODE, OPTION_CHUNK_BYTES, OPTION_WARM_CHUNK_BYTES,
    OPTION_BACKGROUND_THREADS, OPTION_EXPERTS_EXIT, OPTION_PREFETCH, OPTION_ADVICE, OPTION_PREFETCH_CHUNK, OPTION_OWN_BYTES,
    OPTION_TABLE, OPTION_SPINE, OPTION_SPINE_LOCK, OPTION_COMPUTE_SECONDS, OPTION_COMPUTE_THREADS, OPTION_WARM_ITERATIONS,
    OPTION_SAMPLE, OPTION_SAMPLE_EVERY, OPTION_SAMPLE_PASSES, OPTION_FOLIOS_EXIT,
};

static const struct option long_options[] = {
    {"root", required_argument, NULL, OPTION_ROOT},
    {"mode", required_argument, NULL, OPTION_MODE},
    {"warm-mode", required_argument, NULL, OPTION_WARM_MODE},
    {"chunk-bytes", required_argument, NULL, OPTION_CHUNK_BYTES},
    {"warm-chunk-bytes", required_argument, NULL, OPTION_WARM_CHUNK_BYTES},
    {"warm-iterations", required_argument, NULL, OPTION_WARM_ITERATIONS},
    {"background-threads", required_argument, NULL, OPTION_BACKGROUND_THREADS},
    {"threads", required_argument, NULL, OPTION_THREADS},
    {"passes", required_argument, NULL, OPTION_PASSES},
    {"destinations", required_argument, NULL, OPTION_DESTINATIONS},
    {"stamps", required_argument, NULL, OPTION_STAMPS},
    {"hits", required_argument, NULL, OPTION_HITS},
    {"hits-passes", required_argument, NULL, OPTION_HITS_PASSES},
    {"residency-samples", required_argument, NULL, OPTION_RESIDENCY_SAMPLES},
    {"experts-exit", required_argument, NULL, OPTION_EXPERTS_EXIT},
    {"folios-exit", required_argument, NULL, OPTION_FOLIOS_EXIT},
    {"sample", required_argument, NULL, OPTION_SAMPLE},
    {"sample-every", required_argument, NULL, OPTION_SAMPLE_EVERY},
    {"sample-passes", required_argument, NULL, OPTION_SAMPLE_PASSES},
    {"capture", required_argument, NULL, OPTION_CAPTURE},
    {"device-stat", required_argument, NULL, OPTION_DEVICE_STAT},
    {"inflight", required_argument, NULL, OPTION_INFLIGHT},
    {"prefetch", required_argument, NULL, OPTION_PREFETCH},
    {"advice", required_argument, NULL, OPTION_ADVICE},
    {"prefetch-chunk", required_argument, NULL, OPTION_PREFETCH_CHUNK},
    {"own-bytes", required_argument, NULL, OPTION_OWN_BYTES},
    {"table", required_argument, NULL, OPTION_TABLE},
    {"spine", required_argument, NULL, OPTION_SPINE},
    {"spine-lock", no_argument, NULL, OPTION_SPINE_LOCK},
    {"compute-seconds", required_argument, NULL, OPTION_COMPUTE_SECONDS},
    {"compute-threads", required_argument, NULL, OPTION_COMPUTE_THREADS},
    {"wait", no_argument, NULL, OPTION_WAIT},
    {"self-test", required_argument, NULL, OPTION_SELF_TEST},
    {"help", no_argument, NULL, OPTION_HELP},
    {"version", no_argument, NULL, OPTION_VERSION},
    {0},
};

void options_help(void)
{
    puts("moetier-replay PLAN [options]: read a plan's experts, iteration by iteration; JSON lines on stdout\n"
         "\n"
         "  --root DIR             folder that the plan's paths start from (default .)\n"
         "  --mode MODE            where the bytes of a hit come from (default page_cache):\n"
         "                           page_cache, fadv_random    pread, without or with FADV_RANDOM\n"
         "                           mmap, mmap_random          a copy from a mapping, without or with MADV_RANDOM\n"
         "                           mmap_willneed              the same after madvise(WILLNEED) on the extent\n"
         "                           mmap_populate              the same after MADV_POPULATE_READ (Linux 5.14)\n"
         "                           mmap_pread                 the same after a pread to scratch memory and WILLNEED\n"
         "                           mmap_background            the same beside threads that pread ahead\n"
         "                           direct                     pread with O_DIRECT: no page cache\n"
         "                           drop                       pread, then DONTNEED: nothing is kept\n"
         "                           pinned                     a locked arena of a table's experts; the others by pread\n"
         "                           user_lru, user_lfu         a cache of this program's own, filled by O_DIRECT reads\n"
         "                           write_private              pread into a private mapping, in place (copy-on-write)\n"
         "                           write_shared               the same, shared: every page is dirtied\n"
         "  --warm-mode MODE       how every pass but the last reads (default as --mode)\n"
         "  --chunk-bytes N        pread at most N bytes at once, ascending; 0: a whole extent (default 0)\n"
         "  --warm-chunk-bytes N   likewise in every pass but the last (default as --chunk-bytes)\n"
         "  --warm-iterations N    every pass but the last replays only the plan's last N iterations; 0: all (default 0)\n"
         "                         exact LRU ends them with the same content as long as these read its capacity\n"
         "  --background-threads N threads of mmap_background that pread ahead (default 1)\n"
         "  --threads N            threads that share each iteration's accesses (default 2)\n"
         "  --passes NAME,...      replay the whole plan once per name (default warm,measured)\n"
         "  --destinations N       distinct page-aligned buffers, as large as the largest expert (default max(64, threads))\n"
         "  --stamps WHICH         full, ends or none: page stamps compared in a stamped pool (default full)\n"
         "  --hits PROBE           none, cachestat, mincore or auto: resident bytes before each read (default none)\n"
         "  --hits-passes NAME,... count hits in these passes alone (default all)\n"
         "  --residency-samples N  whole-pool residency at N iteration borders of each pass, beside entry and exit (default 0)\n"
         "  --experts-exit NAME,... report every expert's resident bytes at the exit of these passes\n"
         "  --folios-exit NAME,... report in which sizes of folios the pool is resident at the exit of these passes\n"
         "  --sample PATH          record this file raw between iterations, and at the exit (repeatable)\n"
         "  --sample-every N       before each Nth iteration, the first included (default 1)\n"
         "  --sample-passes NAME,... in these passes alone (default the last)\n"
         "  --capture PATH         record this file raw at each pass's entry and exit (repeatable)\n"
         "  --device-stat PATH     a /sys/dev/block/M:m/stat file: bytes read per iteration (repeatable)\n"
         "  --inflight PATH        a /sys/dev/block/M:m/inflight file: wait for 0 before each capture (repeatable)\n"
         "  --spine FILE           a file below the root: mapped, and copied once per iteration before its accesses\n"
         "  --spine-lock           lock the spine in memory, or end with 3\n"
         "  --prefetch HOW         none, fadvise (POSIX_FADV_WILLNEED) or blocking (pread) by a thread beside (default none)\n"
         "  --advice FILE          the experts to prefetch, and from which access on (a list file of kind advice)\n"
         "  --prefetch-chunk N     bytes of one hint; the kernel cuts each to the device's read-ahead (default 131072)\n"
         "  --own-bytes N          bytes of the memory that pinned, user_lru and user_lfu hold experts in\n"
         "  --table FILE           pinned: the experts to hold, best first (a list file of kind table)\n"
         "  --compute-seconds S    end every iteration with a fixed amount of work: S seconds' worth on the idle machine\n"
         "  --compute-threads N    threads of their own that each do this work (default 1)\n"
         "  --wait                 after \"ready\", wait for a line on stdin\n"
         "  --self-test FILE       print which residency probes tell the truth about FILE (its cached pages are dropped)\n"
         "  --help, --version\n"
         "\n"
         "Ends with 0 done, 1 failed, 2 usage, bad plan or list, 3 memory not locked, 77 unsupported here,\n"
         "130 or 143 after SIGINT or SIGTERM.");
}

static bool is_pass_name(const char *name)
{
    return *name && name[strspn(name, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-")] == '\0';
}

// Splits in place: argv belongs to the program.
static bool parse_passes(struct names *names, const char *option, char *text, struct failure *failure)
{
    names->count = 0;
    while (text) {
        char *name = strsep(&text, ",");
        if (!is_pass_name(name) || names_hold(names, name))
            return argument_refused(failure, option, name, "distinct names of letters, digits, - and _, with commas between");
        if (!names_add(names, name, failure))
            return false;
    }
    return true;
}

static bool parse_choice(const char *const *choices, const char *option, const char *text, int *chosen, struct failure *failure)
{
    char expected[256] = "one of";
    for (int i = 0; choices[i]; i++) {
        if (strcmp(choices[i], text) == 0) {
            *chosen = i;
            return true;
        }
        strcat(strcat(expected, " "), choices[i]);
    }
    return argument_refused(failure, option, text, expected);
}

static bool apply(struct options *options, int key, char *text, struct failure *failure)
{
    uint64_t count = 0;
    int choice = 0;
    bool good = true;
    switch (key) {
    case OPTION_ROOT: options->root = text; break;
    case OPTION_MODE:
        good = parse_choice(mode_names, "mode", text, &choice, failure);
        options->mode = (enum mode)choice;
        break;
    case OPTION_WARM_MODE:
        good = parse_choice(mode_names, "warm-mode", text, &choice, failure);
        options->warm_mode = (enum mode)choice;
        options->has_warm_mode = true;
        break;
    case OPTION_CHUNK_BYTES: return parse_count("chunk-bytes", text, 0, 1u << 30, &options->chunk_bytes, failure);
    case OPTION_WARM_CHUNK_BYTES:
        options->has_warm_chunk = true;
        return parse_count("warm-chunk-bytes", text, 0, 1u << 30, &options->warm_chunk_bytes, failure);
    case OPTION_BACKGROUND_THREADS:
        good = parse_count("background-threads", text, 1, MOST_THREADS, &count, failure);
        options->background_threads = (uint32_t)count;
        break;
    case OPTION_WARM_ITERATIONS:
        return parse_count("warm-iterations", text, 0, UINT64_MAX, &options->warm_iterations, failure);
    case OPTION_SAMPLE: return names_add(&options->samples, text, failure);
    case OPTION_SAMPLE_EVERY: return parse_count("sample-every", text, 1, UINT64_MAX, &options->sample_every, failure);
    case OPTION_SAMPLE_PASSES: return parse_passes(&options->sample_passes, "sample-passes", text, failure);
    case OPTION_FOLIOS_EXIT: return parse_passes(&options->folios_exit, "folios-exit", text, failure);
    case OPTION_EXPERTS_EXIT: return parse_passes(&options->experts_exit, "experts-exit", text, failure);
    case OPTION_STAMPS:
        good = parse_choice(stamps_names, "stamps", text, &choice, failure);
        options->stamps = (enum stamps)choice;
        break;
    case OPTION_HITS:
        good = parse_choice(hits_names, "hits", text, &choice, failure);
        options->hits = (enum hits)choice;
        break;
    case OPTION_THREADS:
        good = parse_count("threads", text, 1, MOST_THREADS, &count, failure);
        options->threads = (uint32_t)count;
        break;
    case OPTION_DESTINATIONS: return parse_count("destinations", text, 1, 1u << 24, &options->destinations, failure);
    case OPTION_RESIDENCY_SAMPLES:
        return parse_count("residency-samples", text, 0, 1u << 30, &options->residency_samples, failure);
    case OPTION_PASSES: return parse_passes(&options->passes, "passes", text, failure);
    case OPTION_HITS_PASSES: return parse_passes(&options->hits_passes, "hits-passes", text, failure);
    case OPTION_CAPTURE: return names_add(&options->captures, text, failure);
    case OPTION_DEVICE_STAT: return names_add(&options->device_stats, text, failure);
    case OPTION_INFLIGHT: return names_add(&options->inflights, text, failure);
    case OPTION_PREFETCH:
        good = parse_choice(prefetch_names, "prefetch", text, &choice, failure);
        options->prefetch = (enum prefetch_kind)choice;
        break;
    case OPTION_ADVICE: options->advice = text; break;
    case OPTION_PREFETCH_CHUNK:
        return parse_count("prefetch-chunk", text, LEAST_CHUNK, 1u << 30, &options->prefetch_chunk, failure);
    case OPTION_OWN_BYTES: return parse_count("own-bytes", text, 1, UINT64_MAX, &options->own_bytes, failure);
    case OPTION_TABLE: options->table = text; break;
    case OPTION_SPINE: options->spine = text; break;
    case OPTION_SPINE_LOCK: options->spine_lock = true; break;
    case OPTION_COMPUTE_SECONDS:
        if (!parse_seconds(text, &options->compute_seconds) || options->compute_seconds <= 0 ||
            options->compute_seconds > MOST_COMPUTE_SECONDS)
            return argument_refused(failure, "compute-seconds", text, "a number of seconds above 0, 3600 at most");
        break;
    case OPTION_COMPUTE_THREADS:
        good = parse_count("compute-threads", text, 1, MOST_THREADS, &count, failure);
        options->compute_threads = (uint32_t)count;
        break;
    case OPTION_WAIT: options->wait = true; break;
    case OPTION_SELF_TEST: options->self_test = text; break;
    case OPTION_HELP: options->help = true; break;
    case OPTION_VERSION: options->version = true; break;
    }
    return good;
}

// Asked for in passes of one mode, or of two.
static bool check_chunk(const char *option, uint64_t bytes, enum mode mode, enum mode other, struct failure *failure)
{
    char number[24];
    snprintf(number, sizeof number, "%" PRIu64, bytes);
    if (bytes && !mode_reads_in_chunks(mode) && !mode_reads_in_chunks(other))
        return argument_refused(failure, option, number, "a mode that reads by pread alone: page_cache, fadv_random, drop, direct or "
                     "pinned");
    if (bytes % PAGE_BYTES != 0 && (mode == MODE_DIRECT || other == MODE_DIRECT))
        return argument_refused(failure, option, number, "a multiple of 4096 in mode direct");
    return true;
}

// The modes, and the options that only some of them know: one that would do nothing is refused.
static bool complete_modes(struct options *options, struct failure *failure)
{
    char number[24];
    if (!options->has_warm_mode)
        options->warm_mode = options->mode;
    else if (mode_owns(options->warm_mode) || mode_writes(options->warm_mode))
        return argument_refused(failure, "warm-mode", mode_names[options->warm_mode],
                     "a mode that has no memory of its own and writes nothing");
    if ((options->has_warm_mode || options->has_warm_chunk || options->warm_iterations) && options->passes.count == 1)
        return failure_set(failure, EXIT_USAGE, "usage", "--warm-%s is for every pass but the last: expected --passes with more "
                           "than one name", options->has_warm_mode ? "mode" : options->has_warm_chunk ? "chunk-bytes"
                                                                                                      : "iterations");
    if (!options->has_warm_chunk)
        options->warm_chunk_bytes = options->chunk_bytes;
    if (!check_chunk("chunk-bytes", options->chunk_bytes, options->mode,
                     options->has_warm_chunk ? options->mode : options->warm_mode, failure) ||
        !check_chunk("warm-chunk-bytes", options->warm_chunk_bytes, options->warm_mode,
                     options->has_warm_chunk ? options->warm_mode : options->mode, failure))
        return false;
    bool background = options_use(options, MODE_MMAP_BACKGROUND);
    snprintf(number, sizeof number, "%" PRIu32, options->background_threads);
    if (options->background_threads && !background)
        return argument_refused(failure, "background-threads", number, "--mode or --warm-mode mmap_background");
    if (background && options->background_threads == 0)
        options->background_threads = 1;
    return true;
}

static bool complete_prefetch(struct options *options, struct failure *failure)
{
    bool asked = options->prefetch != PREFETCH_NONE;
    if (options->prefetch_chunk && options->prefetch != PREFETCH_FADVISE)
        return failure_set(failure, EXIT_USAGE, "usage", "--prefetch-chunk is a hint's length: expected --prefetch fadvise");
    if (options->advice && !asked)
        return failure_set(failure, EXIT_USAGE, "usage", "--advice says what to prefetch: expected --prefetch fadvise or "
                           "blocking");
    if (!asked)
        return true;
    const char *how = prefetch_names[options->prefetch];
    if (!options->advice)
        return failure_set(failure, EXIT_USAGE, "usage", "--prefetch %s: expected --advice FILE, which says what", how);
    if (!mode_uses_page_cache(options->mode))
        return failure_set(failure, EXIT_USAGE, "usage", "--prefetch %s with --mode %s: a hint to the page cache does nothing "
                           "for a mode that does not read through it", how, mode_names[options->mode]);
    if (options->prefetch == PREFETCH_FADVISE && options->prefetch_chunk == 0)
        options->prefetch_chunk = STANDARD_CHUNK;
    return true;
}

static bool complete_own(const struct options *options, struct failure *failure)
{
    const char *mode = mode_names[options->mode];
    bool pinned = options->mode == MODE_PINNED;
    bool owns = mode_owns(options->mode);
    if (owns && options->own_bytes == 0)
        return failure_set(failure, EXIT_USAGE, "usage", "--mode %s: expected the size of its memory, as --own-bytes N", mode);
    if (!owns && options->own_bytes > 0)
        return failure_set(failure, EXIT_USAGE, "usage", "--own-bytes with --mode %s, which has no memory of its own: expected "
                           "pinned, user_lru or user_lfu", mode);
    if (pinned && !options->table)
        return failure_set(failure, EXIT_USAGE, "usage", "--mode pinned: expected the experts to hold, as --table FILE");
    if (!pinned && options->table)
        return failure_set(failure, EXIT_USAGE, "usage", "--table with --mode %s: expected --mode pinned", mode);
    return true;
}

static bool known_passes(const struct options *options, const char *option, const struct names *names, struct failure *failure)
{
    for (size_t i = 0; i < names->count; i++)
        if (!names_hold(&options->passes, names->items[i]))
            return argument_refused(failure, option, names->items[i], "names that --passes holds");
    return true;
}

// The spine and the compute phase.
static bool complete_others(struct options *options, struct failure *failure)
{
    if (options->spine_lock && !options->spine)
        return failure_set(failure, EXIT_USAGE, "usage", "--spine-lock locks the spine: expected --spine FILE");
    if (options->compute_threads && options->compute_seconds == 0)
        return failure_set(failure, EXIT_USAGE, "usage", "--compute-threads run the compute phase: expected --compute-seconds");
    if (options->compute_threads == 0 && options->compute_seconds > 0)
        options->compute_threads = 1;
    return true;
}

static bool complete_samples(struct options *options, struct failure *failure)
{
    if (options->samples.count == 0 && (options->sample_every || options->sample_passes.count))
        return failure_set(failure, EXIT_USAGE, "usage", "--sample-%s says when to sample: expected --sample PATH",
                           options->sample_every ? "every" : "passes");
    if (options->sample_every == 0)
        options->sample_every = 1;
    return options->sample_passes.count > 0 ||
           names_add(&options->sample_passes, options->passes.items[options->passes.count - 1], failure);
}

static bool complete(struct options *options, int argc, char **argv, struct failure *failure)
{
    if (options->help || options->version || (options->self_test && optind == argc))
        return true;
    if (options->self_test)
        return failure_set(failure, EXIT_USAGE, "usage", "--self-test %.200s with a plan: expected one or the other",
                           options->self_test);
    if (argc - optind != 1)
        return failure_set(failure, EXIT_USAGE, "usage", "%d plans given, expected one; see --help", argc - optind);
    options->plan = argv[optind];
    if (options->passes.count == 0 &&
        !(names_add(&options->passes, "warm", failure) && names_add(&options->passes, "measured", failure)))
        return false;
    if (options->destinations == 0)
        options->destinations = options->threads > LEAST_DESTINATIONS ? options->threads : LEAST_DESTINATIONS;
    if (options->destinations < options->threads)
        return failure_set(failure, EXIT_USAGE, "usage", "%" PRIu64 " destinations for %" PRIu32
                           " threads: expected at least one each", options->destinations, options->threads);
    return known_passes(options, "hits-passes", &options->hits_passes, failure) &&
           known_passes(options, "experts-exit", &options->experts_exit, failure) &&
           known_passes(options, "folios-exit", &options->folios_exit, failure) &&
           known_passes(options, "sample-passes", &options->sample_passes, failure) && complete_samples(options, failure) &&
           complete_modes(options, failure) &&
           complete_own(options, failure) && complete_others(options, failure) && complete_prefetch(options, failure);
}

bool options_parse(struct options *options, int argc, char **argv, struct failure *failure)
{
    *options = (struct options){.root = ".", .threads = 2};
    opterr = 0;
    int key;
    while ((key = getopt_long(argc, argv, ":", long_options, NULL)) != -1) {
        if (key == ':' || key == '?')
            return failure_set(failure, EXIT_USAGE, "usage", "%.200s: %s; see --help", argv[optind - 1],
                               key == ':' ? "a value is missing" : "unknown option");
        if (!apply(options, key, optarg, failure))
            return false;
    }
    return complete(options, argc, argv, failure);
}

void options_free(struct options *options)
{
    struct names *all[] = {&options->passes, &options->hits_passes, &options->experts_exit, &options->folios_exit,
                           &options->samples, &options->sample_passes, &options->captures, &options->device_stats,
                           &options->inflights};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]->items);
}
