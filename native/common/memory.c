#include "common/memory.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/procfile.h"

uint64_t mem_available_bytes(void)
{
    struct buffer meminfo = {0};
    uint64_t kib = UINT64_MAX / 1024;
    if (buffer_read(&meminfo, "/proc/meminfo") == 0)
        find_number(meminfo.bytes, "MemAvailable", &kib);
    buffer_free(&meminfo);
    return kib * 1024;
}

static bool refused(uint64_t asked, int error, struct failure *failure)
{
    struct rlimit limit = {0};
    char value[32] = "unlimited";
    getrlimit(RLIMIT_MEMLOCK, &limit);
    if (limit.rlim_cur != RLIM_INFINITY)
        snprintf(value, sizeof value, "%ju bytes", (uintmax_t)limit.rlim_cur);
    return failure_set(failure, EXIT_MLOCK, "mlock", "mlock of %" PRIu64 " bytes refused (%s): VmLck is %" PRIu64
                       " bytes, RLIMIT_MEMLOCK is %s; run as root, or raise it with ulimit -l", asked, strerror(error),
                       self_status_bytes("VmLck"), value);
}

// The soft limit may be raised to the hard one by anyone.
static void raise_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_MEMLOCK, &limit);
    }
}

bool lock_memory(const void *memory, uint64_t bytes, uint64_t asked, struct failure *failure)
{
    raise_limit();
    // The system call itself: under ASan the function would do nothing.
    return syscall(SYS_mlock, memory, bytes) == 0 || refused(asked, errno, failure);
}
