// Requests about files. Each answers through the port.
#ifndef MOETIER_FILES_H
#define MOETIER_FILES_H

#include <stdbool.h>

#include "agent/port.h"

// Answers a request; false where its verb is none of these.
bool files_serve(struct port *port, const struct request *request);

void answer(struct port *port, const struct request *request, const void *payload, size_t length);

void answer_error(struct port *port, const struct request *request, int error);

// The same with a text of its own in place of the system's.
void answer_refusal(struct port *port, const struct request *request, int error, const char *message);

// Whether the payload is one field.
bool is_text(const struct request *request);

#endif
