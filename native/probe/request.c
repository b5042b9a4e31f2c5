#include "probe/request.h"

#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/procfile.h"
#include "replay/residency.h"

enum { LEAST_DESTINATIONS = 64, LEAST_REPEATS = 5, MOST_REPEATS = 1000, MOST_THREADS = 256 };
static const uint64_t USUAL_BYTES = 256u << 20;
static const uint64_t USUAL_BLOCK = 1u << 20;
static const uint64_t MOST_BYTES = (uint64_t)1 << 40;
static const uint64_t MOST_BLOCK = 1u << 30;

void request_help(void)
{
    puts("moetier-probe [FOLDER] [options]: how fast this host copies memory and reads a file; JSON lines on stdout\n"
         "\n"
         "Each round measures, one after another: copy (memcpy between two buffers), and with a FOLDER, on a file there that has\n"
         "no name and is gone with this process: direct (O_DIRECT), admitted (pread of a dropped file, which the page cache\n"
         "then holds) and cached (pread of the same bytes again). Every block has a page-aligned destination of its own.\n"
         "\n"
         "  --bytes N             of each of the two buffers, and of the file (default the larger of 256 MiB and twice the\n"
         "                        last-level cache)\n"
         "  --block N             bytes of one copy or read (default 1 MiB); 64 blocks at least\n"
         "  --threads N           each copies or reads its own part (default 1)\n"
         "  --repeats N           rounds, 5 at least (default 5)\n"
         "  --device-stat PATH    a /sys/dev/block/M:m/stat file: bytes read by each measurement (repeatable)\n"
         "  --help, --version\n"
         "\n"
         "Ends with 0 done, 1 failed, 2 usage, 77 unsupported here.");
}

// The largest cache of the first processor. The files say "32768K".
static uint64_t last_level_cache(void)
{
    uint64_t largest = 0;
    for (int index = 0; index < 10; index++) {
        char path[80];
        uint64_t kib = 0;
        snprintf(path, sizeof path, "/sys/devices/system/cpu/cpu0/cache/index%d/size", index);
        if (read_number(path, &kib) && kib * 1024 > largest)
            largest = kib * 1024;
    }
    return largest;
}

static bool check(struct request *request, struct failure *failure)
{
    uint64_t page = kernel_page_bytes();
    char seen[120];
    if (request->bytes == 0)
        request->bytes = USUAL_BYTES > 2 * request->llc_bytes ? USUAL_BYTES : 2 * request->llc_bytes;
    snprintf(seen, sizeof seen, "%" PRIu64 " with --block %" PRIu64, request->bytes, request->block);
    if (request->block % page)
        return argument_refused(failure, "block", seen, "a multiple of the page");
    if (request->bytes / request->block < LEAST_DESTINATIONS)
        return argument_refused(failure, "bytes", seen, "64 blocks or more: fewer destinations would stay in the CPU's cache");
    if (request->bytes / request->block < request->threads)
        return argument_refused(failure, "threads", seen, "a block for every thread");
    request->bytes -= request->bytes % request->block;
    return true;
}

enum { OPTION_BYTES = 256, OPTION_BLOCK, OPTION_THREADS, OPTION_REPEATS, OPTION_STAT, OPTION_HELP, OPTION_VERSION };

static bool apply(struct request *request, int key, const char *text, struct failure *failure)
{
    uint64_t count = 0;
    bool good = true;
    switch (key) {
    case OPTION_BYTES: return parse_count("bytes", text, 1, MOST_BYTES, &request->bytes, failure);
    case OPTION_BLOCK: return parse_count("block", text, 1, MOST_BLOCK, &request->block, failure);
    case OPTION_THREADS:
        good = parse_count("threads", text, 1, MOST_THREADS, &count, failure);
        request->threads = (uint32_t)count;
        break;
    case OPTION_REPEATS:
        good = parse_count("repeats", text, LEAST_REPEATS, MOST_REPEATS, &count, failure);
        request->repeats = (uint32_t)count;
        break;
    case OPTION_STAT: return names_add(&request->device_stats, text, failure);
    case OPTION_HELP: request->help = true; break;
    case OPTION_VERSION: request->version = true; break;
    }
    return good;
}

bool request_parse(struct request *request, int argc, char **argv, struct failure *failure)
{
    static const struct option long_options[] = {
        {"bytes", required_argument, NULL, OPTION_BYTES},
        {"block", required_argument, NULL, OPTION_BLOCK},
        {"threads", required_argument, NULL, OPTION_THREADS},
        {"repeats", required_argument, NULL, OPTION_REPEATS},
        {"device-stat", required_argument, NULL, OPTION_STAT},
        {"help", no_argument, NULL, OPTION_HELP},
        {"version", no_argument, NULL, OPTION_VERSION},
        {0},
    };
    *request = (struct request){.block = USUAL_BLOCK, .threads = 1, .repeats = LEAST_REPEATS, .llc_bytes = last_level_cache()};
    opterr = 0;
    int key;
    while ((key = getopt_long(argc, argv, ":", long_options, NULL)) != -1) {
        if (key < OPTION_BYTES)
            return failure_set(failure, EXIT_USAGE, "usage", "%.200s: expected an option of this program, with its value",
                               argv[optind - 1]);
        if (!apply(request, key, optarg, failure))
            return false;
    }
    if (argc - optind > 1)
        return failure_set(failure, EXIT_USAGE, "usage", "%.200s: expected one folder at most", argv[optind + 1]);
    request->folder = optind < argc ? argv[optind] : NULL;
    return request->help || request->version || check(request, failure);
}

void request_free(struct request *request)
{
    free(request->device_stats.items);
    *request = (struct request){0};
}
