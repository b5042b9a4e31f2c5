// Every thread beside the main one: how it starts, and teams of them that work in rounds.
#ifndef MOETIER_THREADS_H
#define MOETIER_THREADS_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/failure.h"

// Starts a thread that leaves signals to the main thread (SIGBUS stays with whoever causes it). `name` (15 letters at most) is
// what the system shows.
bool thread_start(pthread_t *thread, const char *name, void *(*run)(void *), void *argument, struct failure *failure);

struct team_member;

// Threads that do one piece of work together, wait, and do the next. Zero-initialise: a team of none.
struct team {
    uint32_t n;
    bool dismissed; // some could not be started
    void (*work)(void *argument); // of this round; NULL: there is no other
    struct team_member *members;
    pthread_mutex_t gate; // held until all are started
    pthread_barrier_t start;
    pthread_barrier_t finish;
};

// Starts `n` threads, which then wait. Thread i works on first + i * stride. On failure none is left.
bool team_start(struct team *team, uint32_t n, const char *name, void *first, size_t stride, struct failure *failure);

// A round: all of them do `work`. The caller may do its own part of it before it waits for theirs.
void team_begin(struct team *team, void (*work)(void *argument));
void team_finish(struct team *team);

void team_end(struct team *team);

#endif
