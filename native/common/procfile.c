#include "common/procfile.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const size_t LARGEST_FILE = 16u << 20;

static int fill(struct buffer *buffer, int fd)
{
    buffer->length = 0;
    for (;;) {
        if (buffer->capacity - buffer->length < 2) {
            size_t capacity = buffer->capacity ? buffer->capacity * 2 : 16384;
            char *bytes = capacity > LARGEST_FILE ? NULL : realloc(buffer->bytes, capacity);
            if (!bytes)
                return capacity > LARGEST_FILE ? EFBIG : ENOMEM;
            buffer->bytes = bytes;
            buffer->capacity = capacity;
        }
        ssize_t got = read(fd, buffer->bytes + buffer->length, buffer->capacity - buffer->length - 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return errno;
        if (got == 0)
            break;
        buffer->length += (size_t)got;
    }
    buffer->bytes[buffer->length] = '\0';
    return 0;
}

int buffer_read(struct buffer *buffer, const char *path)
{
    // Non-blocking: a path may turn out to be a pipe that nobody writes to.
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (fd < 0)
        return errno;
    int error = fill(buffer, fd);
    close(fd);
    return error;
}

void buffer_free(struct buffer *buffer)
{
    free(buffer->bytes);
    *buffer = (struct buffer){0};
}

bool read_exactly(int fd, char *bytes, uint64_t length)
{
    for (uint64_t done = 0; done < length;) {
        ssize_t got = pread(fd, bytes + done, length - done, (off_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            errno = got == 0 ? ENODATA : errno;
            return false;
        }
        done += (uint64_t)got;
    }
    return true;
}

bool reread(int fd, char *text, size_t size)
{
    if (fd < 0)
        return false;
    ssize_t got = pread(fd, text, size - 1, 0);
    if (got < 0)
        return false;
    text[got] = '\0';
    return true;
}

bool find_number(const char *text, const char *key, uint64_t *value)
{
    size_t length = strlen(key);
    for (const char *line = text; *line; line += strcspn(line, "\n"), line += *line == '\n') {
        if (strncmp(line, key, length) != 0 || (line[length] != ':' && line[length] != ' '))
            continue;
        const char *number = line + length + 1;
        number += strspn(number, " \t");
        char *end;
        *value = strtoull(number, &end, 10);
        return end != number;
    }
    return false;
}

uint64_t self_status_bytes(const char *key)
{
    struct buffer status = {0};
    uint64_t kib = 0;
    if (buffer_read(&status, "/proc/self/status") == 0)
        find_number(status.bytes, key, &kib);
    buffer_free(&status);
    return kib * 1024;
}

bool read_number(const char *path, uint64_t *value)
{
    struct buffer file = {0};
    bool found = false;
    if (buffer_read(&file, path) == 0) {
        char *end;
        *value = strtoull(file.bytes, &end, 10);
        found = end != file.bytes;
    }
    buffer_free(&file);
    return found;
}
