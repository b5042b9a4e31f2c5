// How every thread beside the main one starts.
#ifndef MOETIER_THREADS_H
#define MOETIER_THREADS_H

#include <pthread.h>

// Signals stay with the main thread, which may be waiting for its start line; SIGBUS stays with whoever causes it. Returns 0 or
// an errno value.
int thread_start(pthread_t *thread, void *(*thread_main)(void *), void *argument);

#endif
