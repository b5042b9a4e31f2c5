// Bytes that wait: put at the end, taken from the start.
#ifndef MOETIER_QUEUE_H
#define MOETIER_QUEUE_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

// Zero-initialise.
struct queue {
    char *bytes;
    size_t start;
    size_t length;
    size_t capacity;
};

// Ends the process where there is no memory: nobody could be told.
void queue_put(struct queue *queue, const void *bytes, size_t length);

static inline char *queue_front(const struct queue *queue)
{
    return queue->bytes + queue->start;
}

void queue_drop(struct queue *queue, size_t length);

// Reads once, `most` bytes at most, from a descriptor that does not block. Returns what read(2) does.
ssize_t queue_fill(struct queue *queue, int fd, size_t most);

// Writes to a descriptor that does not block until it takes no more. False when it never will again, with errno set.
bool queue_empty_into(struct queue *queue, int fd);

void queue_free(struct queue *queue);

#endif
