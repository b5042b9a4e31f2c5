#include "replay/options.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/number.h"

const char *const mode_names[] = {"page_cache", "fadv_random", "mmap", "direct", NULL};
const char *const prefetch_names[] = {"none", "fadvise", "blocking", NULL};
static const char *const stamps_names[] = {"full", "ends", "none", NULL};
static const char *const hits_names[] = {"none", "cachestat", "mincore", "auto", NULL};

enum { MOST_THREADS = 1024, LEAST_DESTINATIONS = 64, LEAST_CHUNK = 4096, STANDARD_CHUNK = 131072,
       MOST_COMPUTE_SECONDS = 3600 };

enum option_key {
    OPTION_ROOT = 1, OPTION_MODE, OPTION_THREADS, OPTION_PASSES, OPTION_DESTINATIONS, OPTION_STAMPS, OPTION_HITS,
    OPTION_HITS_PASSES, OPTION_RESIDENCY_SAMPLES, OPTION_CAPTURE, OPTION_DEVICE_STAT, OPTION_INFLIGHT, OPTION_WAIT,
    OPTION_PREFETCH, OPTION_ADVICE, OPTION_PREFETCH_CHUNK, OPTION_SPINE, OPTION_SPINE_LOCK, OPTION_COMPUTE_SECONDS,
    OPTION_COMPUTE_THREADS,
    OPTION_SELF_TEST, OPTION_HELP, OPTION_VERSION,
};

static const struct option long_options[] = {
    {"root", required_argument, NULL, OPTION_ROOT},
    {"mode", required_argument, NULL, OPTION_MODE},
    {"threads", required_argument, NULL, OPTION_THREADS},
    {"passes", required_argument, NULL, OPTION_PASSES},
    {"destinations", required_argument, NULL, OPTION_DESTINATIONS},
    {"stamps", required_argument, NULL, OPTION_STAMPS},
    {"hits", required_argument, NULL, OPTION_HITS},
    {"hits-passes", required_argument, NULL, OPTION_HITS_PASSES},
    {"residency-samples", required_argument, NULL, OPTION_RESIDENCY_SAMPLES},
    {"capture", required_argument, NULL, OPTION_CAPTURE},
    {"device-stat", required_argument, NULL, OPTION_DEVICE_STAT},
    {"inflight", required_argument, NULL, OPTION_INFLIGHT},
    {"prefetch", required_argument, NULL, OPTION_PREFETCH},
    {"advice", required_argument, NULL, OPTION_ADVICE},
    {"prefetch-chunk", required_argument, NULL, OPTION_PREFETCH_CHUNK},
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
         "  --mode MODE            page_cache (pread), fadv_random, mmap or direct (default page_cache)\n"
         "  --threads N            threads that share each iteration's accesses (default 2)\n"
         "  --passes NAME,...      replay the whole plan once per name (default warm,measured)\n"
         "  --destinations N       distinct page-aligned buffers, each as large as the largest expert (default max(64, threads))\n"
         "  --stamps WHICH         full, ends or none: page stamps compared in a stamped pool (default full)\n"
         "  --hits PROBE           none, cachestat, mincore or auto: resident bytes before each read (default none)\n"
         "  --hits-passes NAME,... count hits in these passes alone (default all)\n"
         "  --residency-samples N  whole-pool residency at N iteration borders of each pass, beside entry and exit (default 0)\n"
         "  --capture PATH         record this file raw at each pass's entry and exit (repeatable)\n"
         "  --device-stat PATH     a /sys/dev/block/M:m/stat file: bytes read per iteration (repeatable)\n"
         "  --inflight PATH        a /sys/dev/block/M:m/inflight file: wait for 0 before each capture (repeatable)\n"
         "  --spine FILE           a file below the root: mapped, and copied once per iteration before its accesses\n"
         "  --spine-lock           lock the spine in memory, or end with 3\n"
         "  --prefetch HOW         none, fadvise (POSIX_FADV_WILLNEED) or blocking (pread) by a thread beside (default none)\n"
         "  --advice FILE          the experts to prefetch, and from which access on (a list file of kind advice)\n"
         "  --prefetch-chunk N     bytes of one hint; the kernel cuts each to the device's read-ahead (default 131072)\n"
         "  --compute-seconds S    end every iteration with a fixed amount of work: S seconds' worth on the idle machine\n"
         "  --compute-threads N    threads of their own that each do this work (default 1)\n"
         "  --wait                 after \"ready\", wait for a line on stdin\n"
         "  --self-test FILE       print which residency probes tell the truth about FILE (its cached pages are dropped)\n"
         "  --help, --version\n"
         "\n"
         "Ends with 0 done, 1 failed, 2 usage, bad plan or list, 3 memory not locked, 77 unsupported here,\n"
         "130 or 143 after SIGINT or SIGTERM.");
}

static bool usage(struct failure *failure, const char *option, const char *seen, const char *expected)
{
    return failure_set(failure, EXIT_USAGE, "usage", "--%s %.200s: expected %s", option, seen, expected);
}

static bool no_memory(struct failure *failure)
{
    return failure_set(failure, EXIT_FAILED, "memory", "no memory for the options");
}

static bool names_add(struct names *names, const char *name, struct failure *failure)
{
    const char **items = realloc(names->items, (names->count + 1) * sizeof *items);
    if (!items)
        return no_memory(failure);
    names->items = items;
    names->items[names->count++] = name;
    return true;
}

bool names_hold(const struct names *names, const char *name)
{
    for (size_t i = 0; i < names->count; i++)
        if (strcmp(names->items[i], name) == 0)
            return true;
    return false;
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
            return usage(failure, option, name, "distinct names of letters, digits, - and _, with commas between");
        if (!names_add(names, name, failure))
            return false;
    }
    return true;
}

static bool parse_choice(const char *const *choices, const char *option, const char *text, int *chosen, struct failure *failure)
{
    char expected[128] = "one of";
    for (int i = 0; choices[i]; i++) {
        if (strcmp(choices[i], text) == 0) {
            *chosen = i;
            return true;
        }
        strcat(strcat(expected, " "), choices[i]);
    }
    return usage(failure, option, text, expected);
}

static bool parse_count(const char *option, const char *text, uint64_t least, uint64_t most, uint64_t *count,
                        struct failure *failure)
{
    char expected[80];
    if (parse_u64(text, count) && *count >= least && *count <= most)
        return true;
    snprintf(expected, sizeof expected, "a whole number from %" PRIu64 " to %" PRIu64, least, most);
    return usage(failure, option, text, expected);
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
    case OPTION_SPINE: options->spine = text; break;
    case OPTION_SPINE_LOCK: options->spine_lock = true; break;
    case OPTION_COMPUTE_SECONDS:
        if (!parse_seconds(text, &options->compute_seconds) || options->compute_seconds <= 0 ||
            options->compute_seconds > MOST_COMPUTE_SECONDS)
            return usage(failure, "compute-seconds", text, "a number of seconds above 0, 3600 at most");
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

// Whether what the page cache holds is of use to the mode.
static bool mode_uses_page_cache(enum mode mode)
{
    return mode != MODE_DIRECT;
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

static bool complete(struct options *options, int argc, char **argv, struct failure *failure)
{
    if (options->help || options->version || (options->self_test && optind == argc))
        return true;
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
    for (size_t i = 0; i < options->hits_passes.count; i++)
        if (!names_hold(&options->passes, options->hits_passes.items[i]))
            return usage(failure, "hits-passes", options->hits_passes.items[i], "names that --passes holds");
    if (options->spine_lock && !options->spine)
        return failure_set(failure, EXIT_USAGE, "usage", "--spine-lock locks the spine: expected --spine FILE");
    if (options->compute_threads && options->compute_seconds == 0)
        return failure_set(failure, EXIT_USAGE, "usage", "--compute-threads run the compute phase: expected --compute-seconds");
    if (options->compute_threads == 0 && options->compute_seconds > 0)
        options->compute_threads = 1;
    return complete_prefetch(options, failure);
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
    struct names *all[] = {&options->passes, &options->hits_passes, &options->captures, &options->device_stats,
                           &options->inflights};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]->items);
}
