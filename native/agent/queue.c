#include "agent/queue.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void reserve(struct queue *queue, size_t more)
{
    if (queue->capacity - queue->start - queue->length >= more)
        return;
    if (queue->start)
        memmove(queue->bytes, queue->bytes + queue->start, queue->length);
    queue->start = 0;
    size_t capacity = queue->capacity ? queue->capacity : 4096;
    while (capacity - queue->length < more)
        capacity *= 2;
    char *bytes = capacity > queue->capacity ? realloc(queue->bytes, capacity) : queue->bytes;
    if (!bytes) {
        fprintf(stderr, "moetier-agent: no memory for %zu bytes that wait\n", capacity);
        _exit(1);
    }
    queue->bytes = bytes;
    queue->capacity = capacity;
}

void queue_put(struct queue *queue, const void *bytes, size_t length)
{
    if (length == 0)
        return;
    reserve(queue, length);
    memcpy(queue->bytes + queue->start + queue->length, bytes, length);
    queue->length += length;
}

void queue_drop(struct queue *queue, size_t length)
{
    enum { KEPT = 1 << 20 };
    queue->start += length;
    queue->length -= length;
    if (queue->length)
        return;
    queue->start = 0;
    if (queue->capacity > KEPT) // one large file must not be held for the rest of the run
        queue_free(queue);
}

ssize_t queue_fill(struct queue *queue, int fd, size_t most)
{
    reserve(queue, most);
    ssize_t got;
    do
        got = read(fd, queue->bytes + queue->start + queue->length, most);
    while (got < 0 && errno == EINTR);
    if (got > 0)
        queue->length += (size_t)got;
    return got;
}

bool queue_empty_into(struct queue *queue, int fd)
{
    while (queue->length) {
        ssize_t written = write(fd, queue_front(queue), queue->length);
        if (written < 0 && errno == EINTR)
            continue;
        if (written < 0)
            return errno == EAGAIN;
        queue_drop(queue, (size_t)written);
    }
    return true;
}

void queue_free(struct queue *queue)
{
    free(queue->bytes);
    *queue = (struct queue){0};
}
