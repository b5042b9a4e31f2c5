// moetier-balloon: holds locked anonymous memory, so that the page cache of the host has less. Serves lines on stdin.
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <malloc.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "balloon/chunks.h"
#include "balloon/events.h"
#include "balloon/watchdog.h"
#include "common/failure.h"
#include "common/memory.h"
#include "common/number.h"
#include "common/parent.h"
#include "common/procfile.h"

struct balloon {
    uint64_t bytes; // asked for at the start
    uint64_t reserve_bytes;
    double heartbeat_seconds;
    int64_t oom_score_adj;
    struct chunks chunks;
    struct watchdog watchdog;
};

static void help(void)
{
    puts("moetier-balloon BYTES [options]: hold BYTES of locked anonymous memory; JSON lines on stdout\n"
         "\n"
         "  --reserve BYTES      let go when MemAvailable falls under half of this (default 1 GiB)\n"
         "  --heartbeat SECONDS  how often the watchdog looks (default 0.25)\n"
         "  --help, --version\n"
         "\n"
         "Lines on stdin: \"resize BYTES\", \"status\", \"release\"; the end of stdin releases.\n"
         "Ends with 0 released as asked, 2 usage, 3 mlock refused, 4 let go by the watchdog.");
}

static bool parse(struct balloon *balloon, int argc, char **argv, struct failure *failure)
{
    static const struct option long_options[] = {
        {"reserve", required_argument, NULL, 'r'}, {"heartbeat", required_argument, NULL, 'b'},
        {"help", no_argument, NULL, 'h'}, {"version", no_argument, NULL, 'v'}, {0},
    };
    opterr = 0;
    int key;
    while ((key = getopt_long(argc, argv, ":", long_options, NULL)) != -1) {
        if (key == 'h' || key == 'v') {
            key == 'h' ? help() : (void)puts("moetier-balloon " MOETIER_VERSION);
            exit(EXIT_DONE);
        }
        bool good = key == 'r' ? parse_u64(optarg, &balloon->reserve_bytes)
                  : key == 'b' ? parse_seconds(optarg, &balloon->heartbeat_seconds) && balloon->heartbeat_seconds >= 0.001
                               : false;
        if (!good)
            return failure_set(failure, EXIT_USAGE, "usage", "%.200s: expected --reserve BYTES or --heartbeat SECONDS; see --help",
                               argv[optind - 1]);
    }
    if (argc - optind != 1 || !parse_u64(argv[optind], &balloon->bytes))
        return failure_set(failure, EXIT_USAGE, "usage", "%.200s: expected one whole number of bytes; see --help",
                           argc - optind == 1 ? argv[optind] : "arguments");
    return true;
}

// The C library would reserve 64 MiB of addresses for the second thread's allocations, and mlockall would count them as locked.
static void keep_one_arena(void)
{
#ifdef __GLIBC__
    mallopt(M_ARENA_MAX, 1);
#endif
}

static void raise_lock_limit(void)
{
    struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
    if (setrlimit(RLIMIT_MEMLOCK, &limit) == 0 || getrlimit(RLIMIT_MEMLOCK, &limit) != 0)
        return;
    limit.rlim_cur = limit.rlim_max;
    setrlimit(RLIMIT_MEMLOCK, &limit);
}

// As well protected as is allowed: a lower score than the inherited one takes a capability. Returns what is in force.
static int64_t protect_from_oom_killer(void)
{
    static const int wanted[] = {-1000, -900, -500, -250, 0};
    int fd = open("/proc/self/oom_score_adj", O_RDWR | O_CLOEXEC);
    char text[32] = "0";
    for (size_t i = 0; fd >= 0 && i < sizeof wanted / sizeof *wanted; i++) {
        int length = snprintf(text, sizeof text, "%d", wanted[i]);
        if (pwrite(fd, text, (size_t)length, 0) == length)
            break;
    }
    if (!reread(fd, text, sizeof text))
        strcpy(text, "0");
    if (fd >= 0)
        close(fd);
    return strtoll(text, NULL, 10);
}

static bool resize(struct balloon *balloon, uint64_t bytes, struct failure *failure)
{
    if (!chunks_resize(&balloon->chunks, bytes, balloon->watchdog.floor_bytes, failure)) {
        if (failure->exit == EXIT_RELEASED)
            let_go(&balloon->chunks, failure->message, mem_available_bytes());
        return false;
    }
    event_locked(balloon->chunks.bytes, balloon->oom_score_adj);
    return true;
}

static bool inflate(struct balloon *balloon, struct failure *failure)
{
    keep_one_arena();
    raise_lock_limit();
    balloon->oom_score_adj = protect_from_oom_killer();
    balloon->watchdog = (struct watchdog){.chunks = &balloon->chunks, .floor_bytes = balloon->reserve_bytes / 2,
                                          .heartbeat_seconds = balloon->heartbeat_seconds};
    if (!watchdog_start(&balloon->watchdog, failure) ||
        !chunks_resize(&balloon->chunks, balloon->bytes, balloon->watchdog.floor_bytes, failure)) {
        if (failure->exit == EXIT_RELEASED)
            let_go(&balloon->chunks, failure->message, mem_available_bytes());
        return false;
    }
    // The watchdog must not wait for its own pages. After the balloon, so that a small limit goes to the balloon first.
    mlockall(MCL_CURRENT);
    event_locked(balloon->chunks.bytes, balloon->oom_score_adj);
    return true;
}

static void answer_usage(const char *line)
{
    struct failure failure = {0};
    failure_set(&failure, EXIT_USAGE, "usage", "%.100s: expected resize BYTES, status or release", line);
    failure_report(&failure, "moetier-balloon");
}

// One line from stdin; false when the balloon is to end. A line that cannot be understood changes nothing.
static bool serve(struct balloon *balloon, const char *line, struct failure *failure)
{
    uint64_t bytes;
    if (strcmp(line, "release") == 0)
        return false;
    if (strcmp(line, "status") == 0)
        event_status(balloon->chunks.bytes, atomic_load(&balloon->watchdog.late_heartbeats));
    else if (strncmp(line, "resize ", 7) == 0 && parse_u64(line + 7, &bytes))
        return resize(balloon, bytes, failure);
    else
        answer_usage(line);
    return true;
}

static void serve_all(struct balloon *balloon, struct failure *failure)
{
    char line[256];
    while (fgets(line, sizeof line, stdin)) {
        line[strcspn(line, "\r\n")] = '\0';
        if (!serve(balloon, line, failure))
            return;
    }
}

int main(int argc, char **argv)
{
    static struct balloon balloon = {.reserve_bytes = 1u << 30, .heartbeat_seconds = 0.25,
                                     .chunks = {.lock = PTHREAD_MUTEX_INITIALIZER}};
    static struct failure failure;
    die_with_parent(SIGKILL);
    signal(SIGPIPE, SIG_IGN);
    if (parse(&balloon, argc, argv, &failure) && inflate(&balloon, &failure))
        serve_all(&balloon, &failure);
    if (!failure.code)
        return EXIT_DONE;
    failure_report(&failure, "moetier-balloon");
    return (int)failure.exit;
}
