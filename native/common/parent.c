#include "common/parent.h"

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

void die_with_parent(int signal)
{
    pid_t parent = getppid();
    prctl(PR_SET_PDEATHSIG, signal);
    // The parent may have died before the request was in force: nobody would send the signal then.
    if (getppid() != parent)
        raise(signal);
}
