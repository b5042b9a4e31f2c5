#include "balloon/watchdog.h"

#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "balloon/events.h"
#include "common/clock.h"
#include "common/memory.h"

static const double LATEST = 2.0;
enum { STACK_BYTES = 256 << 10 }; // its whole size counts as locked

void let_go(struct chunks *chunks, const char *why, uint64_t available)
{
    chunks_release(chunks);
    event_released(why, available);
    fprintf(stderr, "moetier-balloon: released: %s\n", why);
    _exit(EXIT_RELEASED);
}

static void look(struct watchdog *watchdog, double late)
{
    char why[200];
    uint64_t available = mem_available_bytes();
    if (late > LATEST) {
        snprintf(why, sizeof why, "the watchdog's heartbeat came %.2f s late, at most %.0f s are allowed", late, LATEST);
        let_go(watchdog->chunks, why, available);
    }
    if (available < watchdog->floor_bytes) {
        snprintf(why, sizeof why, "MemAvailable is %" PRIu64 " bytes, under half the reserve (%" PRIu64 " bytes)", available,
                 watchdog->floor_bytes);
        let_go(watchdog->chunks, why, available);
    }
    if (late > watchdog->heartbeat_seconds)
        atomic_fetch_add(&watchdog->late_heartbeats, 1);
}

static void *watch(void *argument)
{
    struct watchdog *watchdog = argument;
    for (;;) {
        sleep_seconds(watchdog->heartbeat_seconds);
        double now = clock_seconds();
        double late = now - watchdog->looked - watchdog->heartbeat_seconds;
        watchdog->looked = now;
        look(watchdog, late);
    }
    return NULL;
}

bool watchdog_start(struct watchdog *watchdog, struct failure *failure)
{
    pthread_attr_t attributes;
    pthread_t thread;
    watchdog->looked = clock_seconds();
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    int error = pthread_create(&thread, &attributes, watch, watchdog);
    pthread_attr_destroy(&attributes);
    if (error)
        return failure_set(failure, EXIT_FAILED, "threads", "the watchdog cannot be started: %s", strerror(error));
    pthread_detach(thread);
    return true;
}
