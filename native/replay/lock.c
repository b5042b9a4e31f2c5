#include "replay/lock.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "common/procfile.h"
#include "replay/residency.h"

uint64_t locked_bytes(uint64_t bytes)
{
    uint64_t page = kernel_page_bytes();
    return (bytes + page - 1) / page * page;
}

// The soft limit may be raised to the hard one by anyone.
static void raise_limit(struct rlimit *limit)
{
    if (getrlimit(RLIMIT_MEMLOCK, limit) != 0 || limit->rlim_cur >= limit->rlim_max)
        return;
    struct rlimit raised = {limit->rlim_max, limit->rlim_max};
    if (setrlimit(RLIMIT_MEMLOCK, &raised) == 0)
        *limit = raised;
}

bool lock_memory(const char *what, const void *memory, uint64_t bytes, struct failure *failure)
{
    struct rlimit limit = {RLIM_INFINITY, RLIM_INFINITY};
    raise_limit(&limit);
    // Called directly: AddressSanitizer makes mlock do nothing.
    if (syscall(SYS_mlock, memory, bytes) == 0)
        return true;
    int error = errno;
    char value[32] = "unlimited";
    if (limit.rlim_cur != RLIM_INFINITY)
        snprintf(value, sizeof value, "%ju bytes", (uintmax_t)limit.rlim_cur);
    return failure_set(failure, EXIT_MLOCK, "mlock", "mlock of %s refused (%s): %" PRIu64 " bytes asked, %" PRIu64
                       " locked already (VmLck), RLIMIT_MEMLOCK is %s; run as root, or raise the limit first: ulimit -l %" PRIu64,
                       what, strerror(error), locked_bytes(bytes), self_status_bytes("VmLck"), value,
                       (self_status_bytes("VmLck") + locked_bytes(bytes)) / 1024);
}
