#include "agent/children.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "agent/files.h"
#include "agent/spawn.h"
#include "common/number.h"

enum { MOST_CHUNK = 1 << 16, MOST_INPUT = 64 << 20 };

static void close_pipe(struct child *child, int number)
{
    if (child->pipes[number] >= 0)
        close(child->pipes[number]);
    child->pipes[number] = -1;
}

// Every field of the payload is an argument. NULL where there is no memory.
static char **split(const struct request *request)
{
    size_t count = 1;
    for (size_t i = 0; i < request->length; i++)
        count += request->payload[i] == '\0';
    char **argv = calloc(count + 1, sizeof *argv);
    char *field = request->payload;
    for (size_t i = 0; argv && i < count; i++, field += strlen(field) + 1)
        argv[i] = field;
    return argv;
}

static void start(struct children *children, struct port *port, const struct request *request)
{
    struct child child = {.pipes = {-1, -1, -1}};
    struct child *items = realloc(children->items, (children->count + 1) * sizeof *items);
    if (items)
        children->items = items;
    char **argv = split(request);
    int error = items && argv ? spawn(argv, &child.pid, child.pipes) : ENOMEM;
    free(argv);
    if (error) {
        answer_error(port, request, error);
        return;
    }
    children->items[children->count++] = child;
    char text[24];
    int length = snprintf(text, sizeof text, "%jd", (intmax_t)child.pid);
    answer(port, request, text, (size_t)length);
}

static struct child *find(const struct children *children, const char *pid)
{
    uint64_t number;
    if (!parse_u64(pid, &number))
        return NULL;
    for (size_t i = 0; i < children->count; i++)
        if ((uint64_t)children->items[i].pid == number)
            return &children->items[i];
    return NULL;
}

// Delivers input; closes stdin when nobody reads it, or when all is delivered and it is to end.
static void deliver(struct child *child)
{
    if (child->pipes[0] < 0)
        return;
    bool good = queue_empty_into(&child->input, child->pipes[0]);
    if (good && (child->input.length || !child->input_ends))
        return;
    close_pipe(child, 0);
    queue_free(&child->input);
}

static void take_input(struct child *child, struct port *port, const struct request *request, const char *bytes)
{
    size_t length = request->length - (size_t)(bytes - request->payload);
    if (child->ended || child->pipes[0] < 0 || child->input_ends) {
        answer_refusal(port, request, EPIPE, "its standard input is closed");
    } else if (child->input.length + length > MOST_INPUT) {
        answer_refusal(port, request, ENOBUFS, "it does not read its standard input");
    } else {
        queue_put(&child->input, bytes, length);
        deliver(child);
        answer(port, request, NULL, 0);
    }
}

static void send_signal(const struct child *child, struct port *port, const struct request *request, const char *text)
{
    uint64_t number;
    if (!parse_u64(text, &number) || number > INT_MAX)
        answer_refusal(port, request, EINVAL, "kill: expected a process and a signal, as numbers");
    else if (child->ended) // its number may be another's by now
        answer_error(port, request, ESRCH);
    else if (kill(child->pid, (int)number) != 0)
        answer_error(port, request, errno);
    else
        answer(port, request, NULL, 0);
}

bool children_serve(struct children *children, struct port *port, const struct request *request)
{
    bool starts = strcmp(request->verb, "start") == 0, feeds = strcmp(request->verb, "input") == 0;
    bool closes = strcmp(request->verb, "eof") == 0, kills = strcmp(request->verb, "kill") == 0;
    if (!(starts || feeds || closes || kills))
        return false;
    if (starts) {
        start(children, port, request);
        return true;
    }
    size_t pid_length = strlen(request->payload);
    struct child *child = find(children, request->payload);
    const char *second = request->payload + pid_length + 1; // past the end where there is one field
    if ((pid_length == request->length) != closes) {
        answer_refusal(port, request, EINVAL, closes ? "expected one process" : "expected a process, NUL and a value");
    } else if (!child) {
        answer_error(port, request, ESRCH);
    } else if (feeds) {
        take_input(child, port, request, second);
    } else if (kills) {
        send_signal(child, port, request, second);
    } else {
        child->input_ends = true;
        deliver(child);
        answer(port, request, NULL, 0);
    }
    return true;
}

void children_poll(const struct children *children, struct pollfd *polled, bool port_is_behind)
{
    for (size_t i = 0; i < children->count; i++) {
        const struct child *child = &children->items[i];
        // Without input to deliver, poll still tells when nobody reads it any more.
        *polled++ = (struct pollfd){.fd = child->pipes[0], .events = child->input.length ? POLLOUT : 0};
        for (int number = 1; number < CHILD_PIPES; number++)
            *polled++ = (struct pollfd){.fd = port_is_behind ? -1 : child->pipes[number], .events = POLLIN};
    }
}

static void pass_on(struct child *child, int number, struct port *port)
{
    static const char *const verbs[CHILD_PIPES] = {NULL, "out", "errout"};
    static char bytes[MOST_CHUNK];
    size_t most = child->ended && child->rest[number] < sizeof bytes ? child->rest[number] : sizeof bytes;
    ssize_t got = read(child->pipes[number], bytes, most);
    if (got < 0 && (errno == EINTR || errno == EAGAIN))
        return;
    if (got <= 0) {
        close_pipe(child, number);
        return;
    }
    char tag[24];
    snprintf(tag, sizeof tag, "%jd", (intmax_t)child->pid);
    port_send(port, tag, verbs[number], bytes, (size_t)got);
    if (child->ended && (child->rest[number] -= (size_t)got) == 0)
        close_pipe(child, number);
}

void children_move(struct children *children, struct port *port, const struct pollfd *polled)
{
    for (size_t i = 0; i < children->count; i++) {
        struct child *child = &children->items[i];
        if (polled->revents & POLLERR)
            close_pipe(child, 0);
        else if (polled->revents)
            deliver(child);
        polled++;
        for (int number = 1; number < CHILD_PIPES; number++, polled++)
            if (polled->revents && child->pipes[number] >= 0)
                pass_on(child, number, port);
    }
}

// All that it wrote is in its pipes by now. What follows is of others that hold them open, and is not waited for.
static void end(struct child *child)
{
    child->ended = true;
    close_pipe(child, 0);
    queue_free(&child->input);
    for (int number = 1; number < CHILD_PIPES; number++) {
        int waiting = 0;
        if (child->pipes[number] < 0)
            continue;
        if (ioctl(child->pipes[number], FIONREAD, &waiting) != 0 || waiting == 0)
            close_pipe(child, number);
        child->rest[number] = (size_t)waiting;
    }
}

void children_reap(struct children *children)
{
    for (size_t i = 0; i < children->count; i++) {
        struct child *child = &children->items[i];
        if (!child->ended && waitpid(child->pid, &child->status, WNOHANG) == child->pid)
            end(child);
    }
}

void children_report(struct children *children, struct port *port)
{
    size_t kept = 0;
    for (size_t i = 0; i < children->count; i++) {
        const struct child *child = &children->items[i];
        if (!child->ended || child->pipes[1] >= 0 || child->pipes[2] >= 0) {
            children->items[kept++] = *child;
            continue;
        }
        char tag[24], text[32];
        bool killed = WIFSIGNALED(child->status);
        snprintf(tag, sizeof tag, "%jd", (intmax_t)child->pid);
        int length = snprintf(text, sizeof text, "%s %d", killed ? "killed" : "exited",
                              killed ? WTERMSIG(child->status) : WEXITSTATUS(child->status));
        port_send(port, tag, "end", text, (size_t)length);
    }
    children->count = kept;
}

void children_kill(struct children *children)
{
    for (size_t i = 0; i < children->count; i++)
        if (!children->items[i].ended)
            kill(-children->items[i].pid, SIGKILL);
}
