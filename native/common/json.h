// JSON lines on stdout: one object a line, built in memory and written at once, so that a reader never sees half of one.
#ifndef MOETIER_JSON_H
#define MOETIER_JSON_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// A line being built. Zero-initialise; its memory is kept from line to line until json_free.
struct json {
    char *text;
    size_t length;
    size_t capacity;
    bool comma; // the next value needs a comma before it
};

// Starts a new line: {"event": name.
void json_event(struct json *line, const char *name);

// Values. The key is NULL inside an array.
void json_string(struct json *line, const char *key, const char *text);
void json_bytes(struct json *line, const char *key, const char *bytes, size_t length);
void json_u64(struct json *line, const char *key, uint64_t value);
void json_i64(struct json *line, const char *key, int64_t value);
// Not negative; in nanosecond steps.
void json_seconds(struct json *line, const char *key, double seconds);
void json_bool(struct json *line, const char *key, bool value);
void json_null(struct json *line, const char *key);
void json_hex64(struct json *line, const char *key, uint64_t value);

void json_open_array(struct json *line, const char *key);
void json_close_array(struct json *line);
void json_open_object(struct json *line, const char *key);
void json_close_object(struct json *line);

// Closes the event's object and writes the line to stdout. If nobody can read it any more the process ends with 1: a
// measurement that cannot be reported is not worth the device's time.
void json_send(struct json *line);

// The same for frequent events: the line leaves with the next json_send, or when 0.1 s have passed since lines last left. A
// write wakes the reader, which would take more of a short iteration than all other bookkeeping. For one thread alone.
void json_send_soon(struct json *line);

void json_free(struct json *line);

#endif
