// The request to stop: a signal's, or a failed access's. Looked at after every access.
#ifndef MOETIER_STOP_H
#define MOETIER_STOP_H

#include <stdatomic.h>
#include <stdbool.h>

extern atomic_bool stop_requested;

static inline bool stopping(void)
{
    return atomic_load_explicit(&stop_requested, memory_order_relaxed);
}

// SIGINT and SIGTERM ask for a stop, the second one ends the process at once; SIGPIPE is ignored.
void stop_install(void);

// The signal that asked for the stop, 0 if none did.
int stop_signal(void);

#endif
