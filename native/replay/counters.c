#include "replay/counters.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/procfile.h"

enum { SECTOR_BYTES = 512 };

static double seconds_of(struct timeval time)
{
    return (double)time.tv_sec + (double)time.tv_usec * 1e-6;
}

struct usage usage_now(void)
{
    struct rusage now;
    getrusage(RUSAGE_SELF, &now);
    return (struct usage){(uint64_t)now.ru_majflt, (uint64_t)now.ru_minflt, seconds_of(now.ru_utime), seconds_of(now.ru_stime)};
}

void usage_add(struct usage *sum, const struct usage *before, const struct usage *after)
{
    sum->major_faults += after->major_faults - before->major_faults;
    sum->minor_faults += after->minor_faults - before->minor_faults;
    sum->user_seconds += after->user_seconds - before->user_seconds;
    sum->system_seconds += after->system_seconds - before->system_seconds;
}

bool counters_open(struct counters *counters, const struct names *device_stats, struct failure *failure)
{
    size_t n = device_stats->count;
    *counters = (struct counters){.process_fd = -1};
    counters->device_fds = calloc(n + 1, sizeof *counters->device_fds);
    counters->before = calloc(n + 1, sizeof *counters->before);
    counters->now = calloc(n + 1, sizeof *counters->now);
    if (!counters->device_fds || !counters->before || !counters->now)
        return failure_set(failure, EXIT_FAILED, "memory", "no memory for %zu device counters", n);
    for (size_t i = 0; i < n; i++) {
        const char *path = device_stats->items[i];
        int fd = open(path, O_RDONLY | O_CLOEXEC);
        if (fd < 0) {
            failure_path(failure, path);
            return failure_set(failure, EXIT_FAILED, "open", "--device-stat %.800s cannot be opened: %s", path, strerror(errno));
        }
        counters->device_fds[counters->n_devices++] = fd;
    }
    counters->process_fd = open("/proc/self/io", O_RDONLY | O_CLOEXEC); // may be absent: then null is reported
    return true;
}

// The third field: sectors read.
static struct count read_device(int fd)
{
    char text[512];
    struct count count = {0};
    if (!reread(fd, text, sizeof text))
        return count;
    char *at = text;
    uint64_t field = 0;
    for (int i = 0; i < 3; i++) {
        char *end;
        field = strtoull(at, &end, 10);
        if (end == at)
            return count;
        at = end;
    }
    return (struct count){true, field * SECTOR_BYTES};
}

static struct count read_process(int fd)
{
    char text[512];
    struct count count = {0};
    count.known = reread(fd, text, sizeof text) && find_number(text, "read_bytes", &count.bytes);
    return count;
}

void counters_read(struct counters *counters)
{
    struct count *before = counters->before;
    counters->before = counters->now;
    counters->now = before;
    for (size_t i = 0; i < counters->n_devices; i++)
        counters->now[i] = read_device(counters->device_fds[i]);
    counters->now[counters->n_devices] = read_process(counters->process_fd);
}

struct count counters_delta(const struct counters *counters, size_t i)
{
    struct count before = counters->before[i];
    struct count now = counters->now[i];
    // A counter that went backwards is another device under the same path: unknown, not a huge number.
    if (!before.known || !now.known || now.bytes < before.bytes)
        return (struct count){0};
    return (struct count){true, now.bytes - before.bytes};
}

void counters_close(struct counters *counters)
{
    for (size_t i = 0; i < counters->n_devices; i++)
        close(counters->device_fds[i]);
    if (counters->process_fd >= 0)
        close(counters->process_fd);
    free(counters->device_fds);
    free(counters->before);
    free(counters->now);
    *counters = (struct counters){.process_fd = -1};
}
