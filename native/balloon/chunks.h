// The balloon's memory: locked anonymous mappings, grown and shrunk at the end.
#ifndef MOETIER_CHUNKS_H
#define MOETIER_CHUNKS_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/failure.h"

struct chunk {
    char *base;
    uint64_t bytes;
};

struct chunks {
    pthread_mutex_t lock; // held while memory changes: the watchdog unmaps from its own thread
    struct chunk *items;
    uint64_t count;
    uint64_t capacity;
    uint64_t bytes;
    bool released; // nothing may be added any more
};

// Grows or shrinks to `bytes` (whole pages). Never lets MemAvailable fall below `floor_bytes`: that ends with
// EXIT_RELEASED in the failure, a refused mlock with EXIT_MLOCK.
bool chunks_resize(struct chunks *chunks, uint64_t bytes, uint64_t floor_bytes, struct failure *failure);

// Gives all memory back and refuses any more. Waits at most half a second for a chunk that is being locked; false if it is
// still held then (the end of the process frees it).
bool chunks_release(struct chunks *chunks);

#endif
