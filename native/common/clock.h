// The one clock of every figure: CLOCK_MONOTONIC, in seconds.
#ifndef MOETIER_CLOCK_H
#define MOETIER_CLOCK_H

#include <time.h>

static inline double clock_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static inline void sleep_seconds(double seconds)
{
    struct timespec pause = {.tv_sec = (time_t)seconds};
    pause.tv_nsec = (long)((seconds - (double)pause.tv_sec) * 1e9);
    nanosleep(&pause, NULL);
}

#endif
