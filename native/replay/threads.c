#include "replay/threads.h"

#include <signal.h>
#include <string.h>

enum { STACK_BYTES = 1 << 20 };

bool thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *argument, struct failure *failure)
{
    pthread_attr_t attributes;
    sigset_t all, before;
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    sigdelset(&all, SIGBUS);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int error = pthread_create(thread, &attributes, run, argument);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    if (error)
        return failure_set(failure, EXIT_FAILED, "threads", "the %s thread cannot be started: %s", name, strerror(error));
    pthread_setname_np(*thread, name);
    return true;
}
