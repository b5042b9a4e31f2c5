#include "agent/files.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/procfile.h"

void answer(struct port *port, const struct request *request, const void *payload, size_t length)
{
    port_send(port, request->tag, "ok", payload, length);
}

void answer_refusal(struct port *port, const struct request *request, int error, const char *message)
{
    char text[256];
    int length = snprintf(text, sizeof text, "%d %.200s", error, message);
    port_send(port, request->tag, "err", text, (size_t)length);
}

void answer_error(struct port *port, const struct request *request, int error)
{
    answer_refusal(port, request, error, strerror(error));
}

bool is_text(const struct request *request)
{
    return strlen(request->payload) == request->length;
}

static void done(struct port *port, const struct request *request, int result)
{
    if (result == 0)
        answer(port, request, NULL, 0);
    else
        answer_error(port, request, errno);
}

static void read_file(struct port *port, const struct request *request)
{
    struct buffer file = {0};
    int error = buffer_read(&file, request->payload);
    if (!error && file.length > LARGEST_PAYLOAD)
        error = EFBIG;
    if (error)
        answer_error(port, request, error);
    else
        answer(port, request, file.bytes, file.length);
    buffer_free(&file);
}

// In one write, as the kernel's files want it. Not O_NONBLOCK: memory.max opened so would not wait for its reclaim.
static void write_file(struct port *port, const struct request *request)
{
    size_t path_length = strlen(request->payload);
    if (path_length == request->length) {
        answer_refusal(port, request, EINVAL, "write: expected a path, NUL and bytes");
        return;
    }
    int fd = open(request->payload, O_WRONLY | O_CLOEXEC | O_NOCTTY);
    if (fd < 0) {
        answer_error(port, request, errno);
        return;
    }
    size_t length = request->length - path_length - 1;
    ssize_t written;
    do
        written = write(fd, request->payload + path_length + 1, length);
    while (written < 0 && errno == EINTR);
    if (written < 0)
        answer_error(port, request, errno);
    else if ((size_t)written < length)
        answer_refusal(port, request, EIO, "written in part");
    else
        answer(port, request, NULL, 0);
    close(fd);
}

static void stat_file(struct port *port, const struct request *request)
{
    struct stat status;
    char text[64];
    if (stat(request->payload, &status) != 0) {
        answer_error(port, request, errno);
        return;
    }
    int length = snprintf(text, sizeof text, "%ju %ju", (uintmax_t)status.st_dev, (uintmax_t)status.st_ino);
    answer(port, request, text, (size_t)length);
}

bool files_serve(struct port *port, const struct request *request)
{
    const char *verb = request->verb;
    if (strcmp(verb, "write") == 0) {
        write_file(port, request);
        return true;
    }
    bool reads = strcmp(verb, "read") == 0, asks = strcmp(verb, "stat") == 0, makes = strcmp(verb, "mkdir") == 0;
    bool removes = strcmp(verb, "rmdir") == 0, accesses = strcmp(verb, "access") == 0;
    if (!(reads || asks || makes || removes || accesses))
        return false;
    if (!is_text(request))
        answer_refusal(port, request, EINVAL, "expected one path");
    else if (reads)
        read_file(port, request);
    else if (asks)
        stat_file(port, request);
    else
        done(port, request, makes ? mkdir(request->payload, 0777) : removes ? rmdir(request->payload)
                                                                            : access(request->payload, W_OK));
    return true;
}
