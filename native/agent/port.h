// The port: one line to the host, over which frames go both ways. A frame is a header line "TAG VERB N\n" and N bytes.
//
//   host to agent, TAG a number of the host's choice, fields of the payload with NUL between them:
//     read PATH, stat PATH, mkdir PATH, rmdir PATH, access PATH, write PATH BYTES, start ARG0 ARG1 ...,
//     input PID BYTES, eof PID, kill PID SIGNAL, shutdown
//   agent to host:
//     hello agent VERSION                      once, first
//     TAG ok ... or TAG err "ERRNO MESSAGE"    the answer
//     PID out ..., PID errout ...              what a process wrote
//     PID end "exited CODE" or "killed SIGNAL" after all that it wrote
#ifndef MOETIER_PORT_H
#define MOETIER_PORT_H

#include <stdbool.h>
#include <stddef.h>

#include "agent/queue.h"
#include "common/failure.h"

enum { LONGEST_WORD = 32, LARGEST_PAYLOAD = 4 << 20 };

struct port {
    int in;
    int out; // the same for a terminal
    bool ended; // nobody is there any more
    struct queue received;
    struct queue sending;
};

struct request {
    char tag[LONGEST_WORD + 1];
    char verb[LONGEST_WORD + 1];
    char *payload; // NUL-terminated, for whoever reads a last field as text
    size_t length;
};

enum arrival { ARRIVED_NOTHING, ARRIVED_REQUEST, ARRIVED_MALFORMED };

// Opens a terminal (made raw) or another character device, or stdin and stdout for "-".
bool port_open(struct port *port, const char *path, struct failure *failure);

// Takes what has come; never waits.
void port_receive(struct port *port);

// The next whole request; its payload is to be freed. A malformed header fills the failure.
enum arrival port_next(struct port *port, struct request *request, struct failure *failure);

// Queues a frame.
void port_send(struct port *port, const char *tag, const char *verb, const void *payload, size_t length);

// Writes of the queue what the line takes; never waits.
void port_transmit(struct port *port);

// Writes the rest of the queue, as long as the line takes something now and then.
void port_flush(struct port *port);

#endif
