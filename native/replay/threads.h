// How every thread beside the main one starts.
#ifndef MOETIER_THREADS_H
#define MOETIER_THREADS_H

#include <pthread.h>
#include <stdbool.h>

#include "common/failure.h"

// Starts a thread that leaves signals to the main thread (SIGBUS stays with whoever causes it). `name` (15 letters at most) is
// what the system shows.
bool thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *argument, struct failure *failure);

#endif
