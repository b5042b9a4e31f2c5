// The processes that were started for the host, their pipes, and what waits in them.
#ifndef MOETIER_CHILDREN_H
#define MOETIER_CHILDREN_H

#include <poll.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "agent/port.h"
#include "agent/queue.h"

enum { CHILD_PIPES = 3 }; // stdin, stdout, stderr

struct child {
    pid_t pid;
    int pipes[CHILD_PIPES]; // our ends; -1: closed
    size_t rest[CHILD_PIPES]; // once it has ended: bytes of its output that are still to be passed on
    struct queue input; // it need not read what it is sent
    bool input_ends; // stdin is closed when the input is delivered
    bool ended;
    int status;
};

struct children {
    struct child *items;
    size_t count;
};

// Answers a request; false where its verb is none of these: start, input, eof, kill.
bool children_serve(struct children *children, struct port *port, const struct request *request);

// What to wait for, CHILD_PIPES a child, in order. While the port is behind, their output is left where it is.
void children_poll(const struct children *children, struct pollfd *polled, bool port_is_behind);

// Moves what can be moved, as poll found it.
void children_move(struct children *children, struct port *port, const struct pollfd *polled);

// After SIGCHLD: which have ended. Others' children that were handed to this process are not looked at.
void children_reap(struct children *children);

// Reports those that have ended and whose output has been passed on.
void children_report(struct children *children, struct port *port);

// Ends all of them, with whatever they started in their sessions.
void children_kill(struct children *children);

#endif
